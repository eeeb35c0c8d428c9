/**
 * Finds how many dispatches a device can run per command buffer: with too many, some devices compute wrong results and
 * some crash the page. Persists what it finds.
 */

import { ifOnlyTab, waitWhile, undoUnlessDone, type Notes } from "./persistent-notes.js";

/** Dispatches per command buffer. */
export type Group = "all" | "64" | "8" | "1";

/** Ordered from the fastest to the one that works on every device. */
export const GROUPS: readonly Group[] = ["all", "64", "8", "1"];

/**
 * What is known about this browser's device. `testing` and `running` are written before an action that may crash the
 * page; finding one of them later means it did. `right`: passed a test. `proven`: ran a model.
 */
export interface CalibrationNote {
  /** The user agent; a new version starts over. */
  agent: string;
  /** Index into {@link GROUPS}. */
  rung: number;
  state: "open" | "testing" | "right" | "running" | "proven";
}

const NOTE = "group";
const LAST = GROUPS.length - 1;

/** The next smaller group; the smallest needs no test. */
function smallerGroup({ agent, rung }: CalibrationNote): CalibrationNote {
  const next = Math.min(rung + 1, LAST);
  return { agent, rung: next, state: next === LAST ? "proven" : "open" };
}

/** The state at page start, derived from the stored note. */
export function stateFromNote(note: CalibrationNote | undefined, agent: string): CalibrationNote {
  const known = note?.agent === agent && Number.isInteger(note.rung) && note.rung >= 0 && note.rung <= LAST;
  if (!known) return { agent, rung: 0, state: "open" };
  return note.state === "testing" || note.state === "running" ? smallerGroup(note) : note;
}

/** The calibration of this page's device. */
export class Calibration {
  readonly #notes: Notes;
  #now: CalibrationNote;

  constructor(notes: Notes, agent: string) {
    this.#notes = notes;
    this.#now = stateFromNote(notes.read<CalibrationNote>(NOTE), agent);
  }

  /** The current group. */
  get group(): Group {
    return GROUPS[this.#now.rung]!;
  }

  #write(next: CalibrationNote): boolean {
    this.#now = next;
    return this.#notes.write(NOTE, next);
  }

  /**
   * Runs an action that may crash the page, with a note written first; returns undefined if the note cannot be stored.
   * The note is reverted when the page closes normally.
   */
  async #withNote<T>(state: "testing" | "running", before: CalibrationNote["state"], action: () => Promise<T>): Promise<T | undefined> {
    if (!this.#write({ ...this.#now, state })) return undefined;
    const done = undoUnlessDone(() => this.#write({ ...this.#now, state: before }));
    try {
      return await action();
    } finally {
      done();
    }
  }

  /**
   * Tests groups from the current one to smaller ones until one passes; `test` returns whether its result was correct.
   */
  async chooseGroup(test: (group: Group) => Promise<boolean>): Promise<Group> {
    while (this.#now.state === "open" && this.#now.rung < LAST) {
      const right = await this.#withNote("testing", "open", () => test(this.group).catch(() => false));
      // Without a note the test must not run: a page that it crashes would run it again.
      if (right === undefined) this.#now = { ...this.#now, rung: LAST, state: "proven" };
      else this.#write(right ? { ...this.#now, state: "right" } : smallerGroup(this.#now));
    }
    return this.group;
  }

  /** Runs a model's work; the first that completes proves the group. A lost device counts as a crashed page. */
  run<T>(work: () => Promise<T>): Promise<T> {
    if (this.#now.state !== "right") return work();
    return ifOnlyTab(NOTE, async (only) => {
      // Another tab is calibrating.
      if (!only || this.#now.state !== "right") return work();
      let after = this.#now;
      const result = await this.#withNote("running", "right", async () => {
        try {
          const value = await work();
          after = { ...this.#now, state: "proven" };
          return { value };
        } catch (error) {
          after = (error as { code?: unknown }).code === "device_lost" ? smallerGroup(this.#now) : { ...this.#now, state: "right" };
          return { error };
        }
      });
      if (!result) return work();
      this.#write(after);
      if ("error" in result) throw result.error;
      return result.value as T;
    });
  }
}

/**
 * The calibration of this page with its group chosen; undefined while another tab calibrates, where callers use group
 * 1.
 */
export function calibrateDevice(notes: Notes, agent: string, test: (group: Group) => Promise<boolean>): Promise<Calibration | undefined> {
  return ifOnlyTab(NOTE, async (only) => {
    if (!only) return undefined;
    await waitWhile(() => /^(test|runn)ing$/.test(notes.read<CalibrationNote>(NOTE)?.state ?? ""));
    const calibration = new Calibration(notes, agent);
    await calibration.chooseGroup(test);
    return calibration;
  });
}
