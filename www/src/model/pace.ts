/** How fast this device reads weights while a model writes, as seen so far: what other models may be expected to do. Knows no model by name. */

import type { Model } from "jerboa";
import { stored } from "../prefs";

/** Bytes of weights a second, of the last answer of a model that is large enough to tell; 0 before there was one. */
const rate = stored("pace", 0, (v): v is number => typeof v === "number" && v >= 0);

/** Smaller models spend their time on other things than reading weights. */
const LEAST = 1e8;

/** Notes how fast a model answered. */
export function seen({ info }: Model, tokensPerSecond: number | undefined): void {
  const weights = info.bytes?.weights ?? 0;
  if (tokensPerSecond && weights >= LEAST && !info.device.software) rate.value = tokensPerSecond * weights;
}

/** About how many tokens a second a model of so many bytes writes here; nothing while that is not known. */
export function expected(bytes: number): number | undefined {
  if (rate.value === 0) return undefined;
  const tokens = rate.value / bytes;
  // Two digits: it is a guess.
  const unit = 10 ** Math.max(0, Math.floor(Math.log10(tokens)) - 1);
  return Math.round(tokens / unit) * unit;
}
