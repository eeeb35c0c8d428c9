/** The estimated memory for models on this device, to mark suggestions that are too large. */

import { signal } from "@preact/signals";
import { deviceReport } from "jerboa";

/** Bytes; undefined while unknown. */
export const modelMemory = signal<number | undefined>(undefined);
let asked = false;

/** Queries the estimate, once. */
export function queryModelMemory(): void {
  if (asked) return;
  asked = true;
  deviceReport().then(
    ({ memory }) => void (typeof memory === "number" && (modelMemory.value = memory)),
    () => (asked = false),
  );
}
