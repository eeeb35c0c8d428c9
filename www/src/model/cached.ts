/** The models on this device, asked for before anyone looks, so that a list does not change while it is read. */

import { signal } from "@preact/signals";
import { cachedModels, type CachedModel } from "jerboa";
import { asError, capital } from "../errors";

export const cached = signal<CachedModel[] | undefined>(undefined);
export const cachedProblem = signal("");

/** Asks again. */
export async function refreshCached(): Promise<CachedModel[]> {
  try {
    cached.value = await cachedModels();
    cachedProblem.value = "";
  } catch (thrown) {
    cached.value ??= [];
    cachedProblem.value = capital(asError(thrown).message);
  }
  return cached.value;
}
