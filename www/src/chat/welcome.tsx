/** The Chat tab before the first turn: what this is, on which GPU, and what to begin with. */

import type { Model } from "jerboa";
import { bytes } from "../format";
import { FIRST_CHAT, wantedOf } from "../model/catalog";
import type { ModelSlot } from "../model/slot";
import { APP, CHAT } from "../strings";
import { gpu } from "../webgpu";
import { Notice } from "../ui/notice";

interface Props {
  slot: ModelSlot;
  model: Model;
  send: (text: string) => void;
  choose: () => void;
}

export function Welcome({ slot, model, send, choose }: Props) {
  const completion = !model.info.hasChatTemplate;
  return (
    <section class="welcome">
      <h1>{APP.claim}</h1>
      <p class="device-line">
        {gpu.value && <span>{`Runs on ${gpu.value.name}.`}</span>} {APP.privacy}
      </p>
      {completion && (
        <div class="welcome-actions">
          <button type="button" class="primary" onClick={() => void slot.load(wantedOf(FIRST_CHAT))}>
            {CHAT.firstModel(FIRST_CHAT.name)}
          </button>
          <span class="hint">{CHAT.bundled(bytes(FIRST_CHAT.bytes))}</span>
        </div>
      )}
      <h2>{completion ? CHAT.begin : CHAT.ask}</h2>
      {completion && (
        <p>
          {CHAT.continues}
          <button type="button" class="link" onClick={choose}>
            {CHAT.chooseChat}
          </button>
          .
        </p>
      )}
      <ul class="starters" aria-label="Examples">
        {(completion ? CHAT.stories : CHAT.questions).map((text) => (
          <li key={text}>
            <button type="button" onClick={() => send(text)}>
              {text}
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}

/** A model that does not write, in a tab for those that do. */
export function NotForText({ model, reads, choose }: { model: Model; reads: boolean; choose: () => void }) {
  const { task } = model.info;
  return (
    <Notice
      title={CHAT.notForText(model.info.model)}
      actions={
        <>
          <button type="button" class="primary" onClick={choose}>
            Choose another model
          </button>
          {task === "embed" && (
            <a class="secondary" href="#embedding">
              {CHAT.toEmbedding}
            </a>
          )}
        </>
      }
    >
      {task === "embed" ? CHAT.vectors : task === "rerank" ? CHAT.ranks : reads ? "" : CHAT.noTokenizer}
    </Notice>
  );
}
