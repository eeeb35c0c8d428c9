/** The user's sampling settings. Empty values use the model's defaults. */

import { stored } from "../prefs";

export interface Settings {
  system: string;
  temperature: string;
  topP: string;
  topK: string;
  minP: string;
  seed: string;
  maxTokens: string;
  overflow: "error" | "truncate" | "rolling";
}

export const DEFAULTS: Settings = { system: "", temperature: "", topP: "", topK: "", minP: "", seed: "", maxTokens: "1024", overflow: "truncate" };

/** The settings that are numbers. */
export type NumericSetting = Exclude<keyof Settings, "overflow" | "system">;

/** The largest count that the engine accepts. */
const MAX_COUNT = 2 ** 32 - 1;

/** The range of each number, and the step of its field. A step of 1 allows whole numbers only. */
export const RANGES: Readonly<Record<NumericSetting, { min: number; max: number; step: number }>> = {
  temperature: { min: 0, max: 2, step: 0.05 },
  topP: { min: 0, max: 1, step: 0.01 },
  topK: { min: 0, max: MAX_COUNT, step: 1 },
  minP: { min: 0, max: 1, step: 0.01 },
  seed: { min: 0, max: Number.MAX_SAFE_INTEGER, step: 1 },
  maxTokens: { min: 1, max: MAX_COUNT, step: 1 },
};

/** A number of the user, clamped to its range; undefined for an empty or invalid text. */
export function clamped(name: NumericSetting, text: string): number | undefined {
  const value = Number(text);
  if (text.trim() === "" || Number.isNaN(value)) return undefined;
  const { min, max, step } = RANGES[name];
  const bounded = Math.min(max, Math.max(min, value));
  return step === 1 ? Math.round(bounded) : bounded;
}

const same = (value: unknown): value is Settings =>
  typeof value === "object" &&
  value !== null &&
  Object.entries(DEFAULTS).every(([name]) => typeof (value as Record<string, unknown>)[name] === "string") &&
  ["error", "truncate", "rolling"].includes((value as Settings).overflow);

/** The settings, persisted between visits. */
export const settings = stored<Settings>("settings", DEFAULTS, same);

/** Changes one setting. */
export function set<K extends keyof Settings>(name: K, value: Settings[K]): void {
  settings.value = { ...settings.value, [name]: value };
}

/** The numeric settings that are set. */
export function sampling(): Partial<Record<NumericSetting, number>> {
  const given = (Object.keys(RANGES) as NumericSetting[]).map((name) => [name, clamped(name, settings.value[name])] as const);
  return Object.fromEntries(given.filter(([, value]) => value !== undefined));
}
