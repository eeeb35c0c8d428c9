/** A button that copies text and announces it. */

import { useState } from "preact/hooks";
import { announce } from "./announce";
import { Icon } from "./icon";
import { ANSWERS, UI } from "../strings";

/** Copies a text and announces it; returns whether it worked. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    announce(UI.copiedSentence);
    return true;
  } catch {
    announce(UI.copyBlocked);
    return false;
  }
}

export function CopyButton({ label, text, small }: { label: string; text: () => string; small?: boolean }) {
  const [done, setDone] = useState(false);
  const copy = async (): Promise<void> => {
    if (!(await copyText(text()))) return;
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return (
    <button type="button" class={small ? "quiet-button" : "icon-button"} aria-label={label} title={label} onClick={() => void copy()}>
      <Icon name={done ? "check" : "copy"} />
      {small && <span>{done ? ANSWERS.copied : UI.copy}</span>}
    </button>
  );
}
