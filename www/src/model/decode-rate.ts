/** Estimates decode throughput of models on this device from measured answers. */

import type { Model } from "jerboa";
import { stored } from "../prefs";

/** Bytes of weights per second in the last answer of a sufficiently large model; 0 before the first. */
const rate = stored("pace", 0, (v): v is number => typeof v === "number" && v >= 0);

/** Minimum weight bytes: smaller models are not bound by reading weights. */
const MIN_WEIGHT_BYTES = 1e8;

/** Records the throughput of an answer. */
export function recordRate({ info }: Model, tokensPerSecond: number | undefined): void {
  const weights = info.bytes?.weights ?? 0;
  if (tokensPerSecond && weights >= MIN_WEIGHT_BYTES && !info.device.software) rate.value = tokensPerSecond * weights;
}

/** Estimated tokens per second of a model of this size; undefined while unknown. */
export function expectedRate(bytes: number): number | undefined {
  if (rate.value === 0) return undefined;
  const tokens = rate.value / bytes;
  // Two digits, since it is an estimate.
  const unit = 10 ** Math.max(0, Math.floor(Math.log10(tokens)) - 1);
  return Math.round(tokens / unit) * unit;
}
