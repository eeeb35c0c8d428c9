/** The frame of a tab: model button, picker, and loading state. */

import { useSignal } from "@preact/signals";
import type { Model } from "jerboa";
import type { ComponentChildren } from "preact";
import { APP, DEVICE, PICKER } from "../strings";
import { Icon } from "../ui/icon";
import { gpu } from "../webgpu";
import type { Suggestion } from "./catalog";
import { DownloadCount } from "./download-button";
import { type Bundled, Picker } from "./picker";
import type { ModelSlot } from "./model-store";
import { PendingStage, PendingStrip } from "./status";
import { type Kept, keptModel } from "./wrong-model";

interface Props {
  slot: ModelSlot;
  title: string;
  suggestions: readonly Suggestion[];
  /** The Hub's name of the task. */
  hubTask: string;
  bundled?: Bundled;
  /** Text below the model's name in its button. */
  facts: (model: Model, fromCache: boolean) => string;
  /** Controls at the end of the toolbar. */
  tools?: ComponentChildren;
  /** Content below the loading state, with or without a model, or about a refused one. `choose` opens the picker. */
  children: (model: Model | undefined, choose: () => void, kept?: Kept) => ComponentChildren;
}

export function ModelStage({ slot, title, suggestions, hubTask, bundled, facts, tools, children }: Props) {
  const sheet = useSignal<"none" | "model" | "token">("none");
  const ready = slot.current.value;
  const pending = slot.pending.value;
  const refused = slot.refused.value;
  const choose = (advanced: boolean): void => void (sheet.value = advanced ? "token" : "model");
  return (
    <div class="chat">
      <div class="toolbar toolbar-wide" role="toolbar" aria-label={DEVICE.model}>
        <button type="button" class="model-button" aria-haspopup="dialog" onClick={() => choose(false)}>
          <span class="model-name">{ready?.wanted.label ?? pending?.wanted.label ?? PICKER.title}</span>
          {ready && <span class="model-facts">{facts(ready.model, ready.fromCache)}</span>}
          <DownloadCount />
          <Icon name="down" />
        </button>
        {tools}
      </div>
      <div class="stage">
        <h1 class="unseen">{title}</h1>
        {gpu.value?.software && <p class="hint software">{APP.software}</p>}
        {pending && (ready ? <PendingStrip slot={slot} pending={pending} choose={choose} /> : <PendingStage slot={slot} pending={pending} choose={choose} />)}
        {refused && children(refused.model, () => choose(false), keptModel(slot))}
        {children(ready?.model, () => choose(false))}
      </div>
      <Picker slot={slot} task={hubTask} bundled={bundled} suggestions={suggestions} open={sheet.value !== "none"} advanced={sheet.value === "token"} onClose={() => (sheet.value = "none")} />
    </div>
  );
}
