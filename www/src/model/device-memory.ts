/** The memory for models on this device, as earlier loads have measured it, to mark suggestions that are too large. */

import { signal } from "@preact/signals";
import { deviceReport } from "jerboa";

/** What models can take. */
interface ModelMemory {
  bytes: number;
  /** Whether the device has refused more, or would end the page; else it may have more. */
  isLimit: boolean;
}

/** Undefined while unknown. */
export const modelMemory = signal<ModelMemory | undefined>(undefined);
let asked = false;

/** Queries the device, once. */
export function queryModelMemory(): void {
  if (asked) return;
  asked = true;
  deviceReport().then(
    ({ memory, memoryIsLimit }) => void (modelMemory.value = { bytes: memory, isLimit: memoryIsLimit }),
    () => (asked = false),
  );
}

/** Whether a model of this many bytes fits; undefined if only a load shows it. */
export function fitsDevice(needed: number): boolean | undefined {
  const known = modelMemory.value;
  if (known === undefined) return undefined;
  if (needed <= known.bytes) return true;
  return known.isLimit ? false : undefined;
}
