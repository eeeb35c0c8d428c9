/** The Chat tab before the first turn: what this is, on which GPU, and suggestions. */

import type { Model } from "jerboa";
import type { ComponentChildren } from "preact";
import { bytes } from "../format";
import { BUNDLED_CHAT, FIRST_CHAT, requestOf } from "../model/catalog";
import type { ModelSlot } from "../model/model-store";
import { PendingStage } from "../model/status";
import { type Kept, WrongModel } from "../model/wrong-model";
import { ALSO, APP, CHAT, LINKS, LINK_LABELS, NOTES } from "../strings";
import { gpu } from "../webgpu";

/**
 * The first thing that is painted, with or without a model. www/shell.ts renders the same before the page's script
 * runs.
 */
export function Hero({ children }: { children?: ComponentChildren }) {
  return (
    <section class="welcome">
      <header class="hero">
        <img src="./favicon.svg" alt="" width="48" height="48" />
        <h1>{APP.claim}</h1>
        <p class="device-line">
          {APP.privacy} {gpu.value && <span>{APP.runsOn(gpu.value.name, gpu.value.software)}</span>}
        </p>
      </header>
      {children}
    </section>
  );
}

interface Props {
  slot: ModelSlot;
  model: Model | undefined;
  send: (text: string) => void;
  choose: (advanced: boolean) => void;
}

export function Welcome({ slot, model, send, choose }: Props) {
  const pending = slot.current.value ? undefined : slot.pending.value;
  const tiny = model ? !model.info.hasChatTemplate : pending && !pending.error && pending.wanted.source === BUNDLED_CHAT.source;
  return (
    <Hero>
      {tiny ? (
        <div class="offers">
          <First slot={slot} choose={() => choose(false)} />
          <section class="panel">
            {model ? (
              <>
                <h2>{CHAT.begin}</h2>
                <p>{slot.current.value?.wanted.source === BUNDLED_CHAT.source ? CHAT.tiny : CHAT.continues}</p>
                <Starters texts={CHAT.stories} send={send} />
              </>
            ) : (
              pending && <PendingStage slot={slot} pending={pending} choose={choose} />
            )}
          </section>
        </div>
      ) : model ? (
        <>
          <h2>{CHAT.ask}</h2>
          <Starters texts={CHAT.questions} send={send} />
        </>
      ) : pending ? (
        <PendingStage slot={slot} pending={pending} choose={choose} />
      ) : (
        <div class="offers">
          <First slot={slot} choose={() => choose(false)} title={CHAT.none} />
        </div>
      )}
      <Also />
    </Hero>
  );
}

/** The suggested chat model. */
function First({ slot, choose, title }: { slot: ModelSlot; choose: () => void; title?: string }) {
  const { name, note, bytes: size, memory, licence } = FIRST_CHAT;
  return (
    <section class="panel offer">
      <h2>{title ?? `${name}: ${NOTES[note] ?? note.toLowerCase()}`}</h2>
      <p>{CHAT.first(bytes(size), bytes(memory), licence)}</p>
      <div class="starters">
        <button type="button" class="primary" onClick={() => void slot.load(requestOf(FIRST_CHAT))}>
          {CHAT.firstModel(name)}
        </button>
        <button type="button" class="secondary" onClick={choose}>
          {CHAT.chooseChat}
        </button>
      </div>
    </section>
  );
}

function Starters({ texts, send }: { texts: readonly string[]; send: (text: string) => void }) {
  return (
    <ul class="starters" aria-label={CHAT.examples}>
      {texts.map((text) => (
        <li key={text}>
          <button type="button" onClick={() => send(text)}>
            {text}
          </button>
        </li>
      ))}
    </ul>
  );
}

/** The other tabs; on phones, where the header has no room, also the other pages. */
function Also() {
  return (
    <footer class="also">
      <h2>{ALSO.label}</h2>
      <ul class="also-tabs">
        {ALSO.tabs.map(({ id, name, does }) => (
          <li key={id}>
            <a href={`#${id}`}>
              <strong>{name}</strong>
              <span class="hint">{does}</span>
            </a>
          </li>
        ))}
      </ul>
      <ul class="also-links">
        {LINKS.map(({ label, href }) => (
          <li key={href}>
            <a href={href}>{LINK_LABELS[label]}</a>
          </li>
        ))}
      </ul>
    </footer>
  );
}

/** Tabs of speech models, by task. */
const SPEECH_TABS: Partial<Record<string, string>> = { transcribe: "stt", speak: "tts" };

/** The notice for a model that cannot generate text. */
export function NotForText({ model, reads, choose, kept }: { model: Model; reads: boolean; choose: () => void; kept?: Kept | undefined }) {
  const { task } = model.info;
  const tab = ALSO.tabs.find(({ id }) => id === SPEECH_TABS[task]);
  return (
    <WrongModel
      title={CHAT.notForText(model.info.model)}
      choose={choose}
      kept={kept}
      more={
        <>
          {task === "embed" && (
            <a class="secondary" href="#embedding">
              {CHAT.toEmbedding}
            </a>
          )}
          {tab && (
            <a class="secondary" href={`#${tab.id}`}>
              {tab.name}
            </a>
          )}
        </>
      }
    >
      {task === "embed" ? CHAT.vectors : task === "rerank" ? CHAT.ranks : tab ? tab.does : reads ? "" : CHAT.noTokenizer}
    </WrongModel>
  );
}
