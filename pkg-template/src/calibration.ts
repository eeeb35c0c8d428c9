/** Finds how many dispatches a device takes at once: some compute wrongly with more, some end the page. Knows the order and the notes; not the device. */

import { alone, caughtUp, untilDone, type Notes } from "./notes.js";

/** Dispatches in one command buffer. */
export type Group = "all" | "64" | "8" | "1";

/** From the fastest to the one that every device can do. */
export const GROUPS: readonly Group[] = ["all", "64", "8", "1"];

/**
 * What is known of this browser's device. `testing` and `running` are written before what may kill the page: found again, they tell that it
 * did. `right` came out right in a test, `proven` ran a model.
 */
export interface Calibrated {
  /** The user agent: another version begins again. */
  agent: string;
  /** The place in {@link GROUPS}. */
  rung: number;
  state: "open" | "testing" | "right" | "running" | "proven";
}

const NOTE = "group";
const LAST = GROUPS.length - 1;

/** The next smaller group; the smallest needs no test. */
function lower({ agent, rung }: Calibrated): Calibrated {
  const next = Math.min(rung + 1, LAST);
  return { agent, rung: next, state: next === LAST ? "proven" : "open" };
}

/** What a note says at the start of a page. */
export function reopened(note: Calibrated | undefined, agent: string): Calibrated {
  const known = note?.agent === agent && Number.isInteger(note.rung) && note.rung >= 0 && note.rung <= LAST;
  if (!known) return { agent, rung: 0, state: "open" };
  return note.state === "testing" || note.state === "running" ? lower(note) : note;
}

/** The calibration of this page's device. */
export class Calibration {
  readonly #notes: Notes;
  #now: Calibrated;

  constructor(notes: Notes, agent: string) {
    this.#notes = notes;
    this.#now = reopened(notes.read<Calibrated>(NOTE), agent);
  }

  /** The group to use now. */
  get group(): Group {
    return GROUPS[this.#now.rung]!;
  }

  #write(next: Calibrated): boolean {
    this.#now = next;
    return this.#notes.write(NOTE, next);
  }

  /** Does what may kill the page, written down before; nothing where that cannot be written. A page that goes away in good order takes it back. */
  async #noted<T>(state: "testing" | "running", before: Calibrated["state"], action: () => Promise<T>): Promise<T | undefined> {
    if (!this.#write({ ...this.#now, state })) return undefined;
    const done = untilDone(() => this.#write({ ...this.#now, state: before }));
    try {
      return await action();
    } finally {
      done();
    }
  }

  /** Tests groups from the largest that may be right on, until one is: `test` says whether it came out right. */
  async settle(test: (group: Group) => Promise<boolean>): Promise<Group> {
    while (this.#now.state === "open" && this.#now.rung < LAST) {
      const right = await this.#noted("testing", "open", () => test(this.group).catch(() => false));
      // What cannot be written down must not be tried: a page that it kills would try it again.
      if (right === undefined) this.#now = { ...this.#now, rung: LAST, state: "proven" };
      else this.#write(right ? { ...this.#now, state: "right" } : lower(this.#now));
    }
    return this.group;
  }

  /** Runs a model's work; the first that is done proves the group. A device that is lost over it is as good as a killed page. */
  run<T>(work: () => Promise<T>): Promise<T> {
    if (this.#now.state !== "right") return work();
    return alone(NOTE, async (only) => {
      // Another tab is at it.
      if (!only || this.#now.state !== "right") return work();
      let after = this.#now;
      const result = await this.#noted("running", "right", async () => {
        try {
          const value = await work();
          after = { ...this.#now, state: "proven" };
          return { value };
        } catch (error) {
          after = (error as { code?: unknown }).code === "device_lost" ? lower(this.#now) : { ...this.#now, state: "right" };
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

/** The calibration of this page, with its group settled; where another tab is at it, the group that is safe everywhere and nothing noted. */
export function calibrated(notes: Notes, agent: string, test: (group: Group) => Promise<boolean>): Promise<Calibration | undefined> {
  return alone(NOTE, async (only) => {
    if (!only) return undefined;
    await caughtUp(() => /^(test|runn)ing$/.test(notes.read<Calibrated>(NOTE)?.state ?? ""));
    const calibration = new Calibration(notes, agent);
    await calibration.settle(test);
    return calibration;
  });
}
