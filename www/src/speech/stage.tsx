/** The frame of a speech tab: messages without a model, or with one of another task. */

import type { Model } from "jerboa";
import type { ComponentChildren } from "preact";
import { bytes } from "../format";
import { requestOf, type Suggestion } from "../model/catalog";
import type { ModelSlot } from "../model/model-store";
import { ModelStage } from "../model/stage";
import { WrongModel } from "../model/wrong-model";
import { CHAT, PICKER, STT } from "../strings";

/** Names of the tasks at the Hub. */
const HUB_TASKS: Record<string, string> = { transcribe: "automatic-speech-recognition", speak: "text-to-speech" };

interface Props {
  slot: ModelSlot;
  task: string;
  title: string;
  suggestions: readonly Suggestion[];
  /** Shown before a model is chosen. */
  empty: string;
  /** Shown for a model of another task. */
  wrong: (name: string) => string;
  facts: (model: Model) => string;
  /** Shown next to the model choice. */
  aside?: ComponentChildren;
  children: (model: Model) => ComponentChildren;
}

export function Stage({ slot, task, title, suggestions, empty, wrong, facts, aside: beside, children }: Props) {
  const offer = suggestions[0];
  const fits = (model: Model | undefined): boolean => model?.info.task === task;
  const button = (choose: () => void) => (
    <button type="button" class="primary" onClick={choose}>
      {PICKER.title}
    </button>
  );
  return (
    <ModelStage slot={slot} title={title} suggestions={suggestions} hubTask={HUB_TASKS[task] ?? ""} facts={facts}>
      {(model, choose, kept) => (
        <>
          {!model && !slot.pending.value && (
            <section class="panel empty" aria-label={title}>
              <h2>{title}</h2>
              <p>{empty}</p>
              {offer ? (
                <div class="row row-wrap">
                  <button type="button" class="primary" onClick={() => void slot.load(requestOf(offer))}>
                    {STT.load(offer.name, bytes(offer.bytes))}
                  </button>
                  <button type="button" class="secondary" onClick={choose}>
                    {CHAT.chooseChat}
                  </button>
                </div>
              ) : (
                button(choose)
              )}
            </section>
          )}
          {(!model || fits(model)) && !slot.pending.value && beside}
          {model && fits(model) && children(model)}
          {model && !fits(model) && (
            <WrongModel title={wrong(model.info.model)} choose={choose} kept={kept}>
              {empty}
            </WrongModel>
          )}
        </>
      )}
    </ModelStage>
  );
}
