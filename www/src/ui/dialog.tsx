/** A modal dialog: the browser's own, which traps and restores the focus. */

import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { Icon } from "./icon";
import { UI } from "../strings";

interface Props {
  open: boolean;
  title: string;
  onClose: () => void;
  /** Aligns it to the right edge if there is room. */
  side?: boolean;
  children: ComponentChildren;
}

export function Dialog({ open, title, onClose, side, children }: Props) {
  const ref = useRef<HTMLDialogElement>(null);
  const id = useId();
  // A press that begins inside, such as a selection of text, and ends on the backdrop is a click on the dialog, too.
  const pressedBackdrop = useRef(false);
  useEffect(() => {
    const dialog = ref.current;
    if (open && !dialog?.open) dialog?.showModal();
    if (!open && dialog?.open) dialog.close();
  }, [open]);
  return (
    <dialog
      ref={ref}
      class={side ? "sheet sheet-side" : "sheet"}
      aria-labelledby={id}
      onClose={onClose}
      onPointerDown={(event) => (pressedBackdrop.current = event.target === ref.current)}
      onClick={(event) => event.target === ref.current && pressedBackdrop.current && onClose()}
    >
      {open && (
        <div class="sheet-body">
          <header class="sheet-head">
            <h2 id={id}>{title}</h2>
            <button type="button" class="icon-button" aria-label={UI.close} onClick={onClose}>
              <Icon name="close" />
            </button>
          </header>
          {children}
        </div>
      )}
    </dialog>
  );
}
