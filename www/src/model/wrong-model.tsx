/** The notice about a model for another task: instead of the tab, or above it if its model stays loaded. */

import type { ComponentChildren } from "preact";
import { LOAD } from "../strings";
import { refocus } from "../ui/focus";
import { Notice } from "../ui/notice";
import type { ModelSlot } from "./model-store";

/** The model that stays loaded, and how to hide the notice. */
export interface Kept {
  label: string;
  dismiss: () => void;
}

/** The model that a slot has kept instead of the refused one. */
export function keptModel(slot: ModelSlot): Kept | undefined {
  const before = slot.current.value;
  return before && slot.refused.value ? { label: before.wanted.label, dismiss: () => dismiss(slot) } : undefined;
}

function dismiss(slot: ModelSlot): void {
  slot.dismiss();
  refocus(".model-button");
}

interface Props {
  title: string;
  kept?: Kept | undefined;
  /** Opens the choice of models. */
  choose: () => void;
  /** Further actions. */
  more?: ComponentChildren;
  /** What to choose. */
  children: ComponentChildren;
}

export function WrongModel({ title, kept, choose, more, children }: Props) {
  return (
    <Notice
      title={kept ? `${title} ${LOAD.staysLoaded(kept.label)}` : title}
      actions={
        <>
          <button type="button" class="primary" onClick={choose}>
            {LOAD.other}
          </button>
          {more}
          {kept && (
            <button type="button" class="secondary" onClick={kept.dismiss}>
              {LOAD.dismiss}
            </button>
          )}
        </>
      }
    >
      {children}
    </Notice>
  );
}
