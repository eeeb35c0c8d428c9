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
export function sampling(): { temperature?: number; topP?: number; topK?: number; minP?: number; seed?: number; maxTokens?: number } {
  const { temperature, topP, topK, minP, seed, maxTokens } = settings.value;
  const given = Object.entries({ temperature, topP, topK, minP, seed, maxTokens }).filter(([, text]) => text.trim() !== "");
  return Object.fromEntries(given.map(([name, text]) => [name, Number(text)]));
}
