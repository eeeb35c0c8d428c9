/** Formats numbers for display. */

import { locale } from "./language";

/** A number with this many decimals, in the page's language. */
function decimal(n: number, digits: number): string {
  return n.toLocaleString(locale(), { minimumFractionDigits: digits, maximumFractionDigits: digits, useGrouping: false });
}

/** Bytes in powers of 1000, as operating systems show them. */
export function bytes(n: number): string {
  if (n < 1000) return `${n} B`;
  const units = ["kB", "MB", "GB", "TB"];
  let value = n / 1000;
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit++;
  }
  return `${decimal(value, value < 9.95 ? 1 : 0)} ${units[unit]}`;
}

/** A duration, roughly. */
export function seconds(s: number): string {
  if (s < 1) return "less than a second";
  if (s < 59.5) return `${Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
}

/** Milliseconds, in the most readable unit. */
export function milliseconds(ms: number): string {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${decimal(ms / 1000, ms < 10_000 ? 2 : 1)} s`;
}

/** A rate with about three digits. */
export function rate(perSecond: number): string {
  return perSecond >= 100 ? decimal(perSecond, 0) : decimal(perSecond, 1);
}

/** A count with its noun. */
export function count(n: number, noun: string): string {
  return `${n.toLocaleString(locale())} ${noun}${n === 1 ? "" : "s"}`;
}

/** A parameter count: 260K, 0.6B. */
export function parameters(n: number): string {
  if (n >= 1e9) return `${(n / 1e9).toFixed(n < 1e10 ? 1 : 0)}B`;
  if (n >= 1e6) return `${Math.round(n / 1e6)}M`;
  return `${Math.round(n / 1e3)}K`;
}
