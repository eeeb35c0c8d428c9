/** How much memory a model may take on this device, as the engine guesses: which suggestions are too large for it. Knows no model. */

import { signal } from "@preact/signals";
import { deviceReport } from "jerboa";

/** Bytes; nothing while nobody has asked, or where nobody can tell. */
export const room = signal<number | undefined>(undefined);
let asked = false;

/** Asks, once. */
export function askRoom(): void {
  if (asked) return;
  asked = true;
  deviceReport().then(
    ({ memory }) => void (typeof memory === "number" && (room.value = memory)),
    () => (asked = false),
  );
}
