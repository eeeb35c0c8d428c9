/** The stage of a tab of sound: which model it has, how one is chosen, and what is said while there is none. */

import { useSignal } from "@preact/signals";
import type { Model } from "jerboa";
import type { ComponentChildren } from "preact";
import type { Suggestion } from "../model/catalog";
import { Picker } from "../model/picker";
import type { ModelSlot } from "../model/slot";
import { PendingStage, PendingStrip } from "../model/status";
import { APP } from "../strings";
import { Icon } from "../ui/icon";
import { Notice } from "../ui/notice";
import { gpu } from "../webgpu";

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
  const sheet = useSignal<"none" | "model" | "token">("none");
  const ready = slot.current.value;
  const pending = slot.pending.value;
  const choose = (advanced: boolean): void => void (sheet.value = advanced ? "token" : "model");
  const button = (
    <button type="button" class="primary" onClick={() => choose(false)}>
      Choose a model
    </button>
  );
  return (
    <div class="chat">
      <div class="toolbar toolbar-wide" role="toolbar" aria-label="Model">
        <button type="button" class="model-button" aria-haspopup="dialog" onClick={() => choose(false)}>
          <span class="model-name">{ready?.wanted.label ?? pending?.wanted.label ?? "Choose a model"}</span>
          {ready && <span class="model-facts">{facts(ready.model)}</span>}
          <Icon name="down" />
        </button>
      </div>
      <div class="stage">
        <h1 class="unseen">{title}</h1>
        {gpu.value?.software && <p class="hint software">{APP.software}</p>}
        {pending && (ready ? <PendingStrip slot={slot} pending={pending} choose={choose} /> : <PendingStage slot={slot} pending={pending} choose={choose} />)}
        {!ready && !pending && (
          <section class="panel empty" aria-label={title}>
            <h2>{title}</h2>
            <p>{empty}</p>
            {button}
          </section>
        )}
        {(!ready || ready.model.info.task === task) && !pending && beside}
        {ready && (ready.model.info.task === task ? children(ready.model) : <Notice title={wrong(ready.model.info.model)} actions={button}>{empty}</Notice>)}
      </div>
      <Picker slot={slot} suggestions={suggestions} open={sheet.value !== "none"} advanced={sheet.value === "token"} onClose={() => (sheet.value = "none")} />
    </div>
  );
}
