/** The cached models, listed before the picker opens, so that the list does not change while it is read. */

import { signal } from "@preact/signals";
import { cachedModels, type CachedModel } from "jerboa";
import { asError, capital } from "../errors";

export const cached = signal<CachedModel[] | undefined>(undefined);
export const cachedProblem = signal("");

/** Lists them again. */
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
