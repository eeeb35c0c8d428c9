/** What the command line prints: results on stdout, progress and messages on stderr. */

import { stderr, stdout } from "node:process";
import type { LoadProgress } from "./contract.js";

/** Characters of a progress bar. */
const BAR_WIDTH = 24;
/** Milliseconds between two updates of a progress bar. */
const UPDATE_MS = 100;

/** Prints a line of a result. */
export const print = (line: string): void => void stdout.write(`${line}\n`);
/** Prints part of a result. */
export const printPart = (part: string): void => void stdout.write(part);
/** Prints a message for the user. */
export const note = (line: string): void => void stderr.write(`${line}\n`);
/** Prints a value as one line of JSON; vectors are arrays. */
export const printJson = (value: unknown): void => print(JSON.stringify(value, (_, each: unknown) => (ArrayBuffer.isView(each) ? Array.from(each as Float32Array) : each)));

/** Bytes in the largest unit that gives at least 1. */
export function bytesText(bytes: number): string {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let [value, unit] = [bytes, 0];
  for (; value >= 1000 && unit < units.length - 1; unit++) value /= 1000;
  return `${value.toFixed(unit > 0 && value < 10 ? 1 : 0)} ${units[unit]}`;
}

/** Aligns the columns of rows; a column of numbers to the right. */
export function table(head: string[], rows: string[][]): string {
  const width = head.map((name, i) => Math.max(name.length, ...rows.map((row) => row[i]!.length)));
  const right = head.map((_, i) => rows.length > 0 && rows.every((row) => /^[\d.]+( [KMGT]?B)?$/.test(row[i]!)));
  const line = (row: string[]): string => row.map((cell, i) => (right[i] ? cell.padStart(width[i]!) : cell.padEnd(width[i]!))).join("  ").trimEnd();
  return [head, ...rows].map(line).join("\n");
}

/** A progress bar on a terminal; elsewhere one line per phase. */
export class ProgressBar {
  #last = 0;
  #phase = "";
  #drawn = false;

  /** Shows the state of a load. */
  readonly show = (progress: LoadProgress): void => {
    const { phase, waitingFor } = progress;
    if (!stderr.isTTY) {
      if (phase !== this.#phase && phase !== "ready") note(`${phase}${waitingFor ? `: ${waitingFor}` : ""}`);
      this.#phase = phase;
      return;
    }
    if (phase === "ready") return this.clear();
    if (Date.now() - this.#last < UPDATE_MS && phase === this.#phase) return;
    this.#last = Date.now();
    this.#phase = phase;
    this.#drawn = true;
    stderr.write(`\r\u001b[K${this.#line(progress)}`);
  };

  #line({ phase, progress, loaded, total, bytesPerSecond, secondsLeft, fromCache, waitingFor }: LoadProgress): string {
    const done = Math.round(progress * BAR_WIDTH);
    const bar = `${"█".repeat(done)}${"░".repeat(BAR_WIDTH - done)} ${Math.round(progress * 100).toString().padStart(3)} %`;
    if (waitingFor) return `${bar} ${waitingFor}`;
    if (phase !== "weights" || !total) return `${bar} ${phase}`;
    const rate = bytesPerSecond ? ` ${bytesText(bytesPerSecond)}/s` : "";
    const left = secondsLeft === undefined ? "" : ` ${Math.ceil(secondsLeft)} s left`;
    return `${bar} ${bytesText(loaded)} of ${bytesText(total)}${rate}${left}${fromCache ? " from the cache" : ""}`;
  }

  /** Removes the bar. */
  clear(): void {
    if (this.#drawn) stderr.write("\r\u001b[K");
    this.#drawn = false;
  }
}
