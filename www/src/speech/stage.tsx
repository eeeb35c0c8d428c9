/** The stage of a tab of sound: what is said while there is no model, or one for something else. */

import type { Model } from "jerboa";
import type { ComponentChildren } from "preact";
import type { Suggestion } from "../model/catalog";
import type { ModelSlot } from "../model/slot";
import { ModelStage } from "../model/stage";
import { Notice } from "../ui/notice";

interface Props {
  slot: ModelSlot;
  task: string;
  title: string;
  suggestions: readonly Suggestion[];
  /** Before a model was chosen. */
  empty: string;
  /** Of a model for something else. */
  wrong: (name: string) => string;
  facts: (model: Model) => string;
  /** Beside the choice of a model. */
  beside?: ComponentChildren;
  children: (model: Model) => ComponentChildren;
}

export function Stage({ slot, task, title, suggestions, empty, wrong, facts, beside, children }: Props) {
  const fits = (model: Model | undefined): boolean => model?.info.task === task;
  const button = (choose: () => void) => (
    <button type="button" class="primary" onClick={choose}>
      Choose a model
    </button>
  );
  return (
    <ModelStage slot={slot} title={title} suggestions={suggestions} facts={facts}>
      {(model, choose) => (
        <>
          {!model && !slot.pending.value && (
            <section class="panel empty" aria-label={title}>
              <h2>{title}</h2>
              <p>{empty}</p>
              {button(choose)}
            </section>
          )}
          {(!model || fits(model)) && !slot.pending.value && beside}
          {model && (fits(model) ? children(model) : <Notice title={wrong(model.info.model)} actions={button(choose)}>{empty}</Notice>)}
        </>
      )}
    </ModelStage>
  );
}
