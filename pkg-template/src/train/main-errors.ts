/** Errors of entries that are bundled apart from the main one, whose shared code has an error class of its own. */

import { JerboaError } from "../index.js";

/** Runs a call; errors of the package's shared code become those of its main entry. */
export async function withMainErrors<T>(run: () => Promise<T>): Promise<T> {
  try {
    return await run();
  } catch (thrown) {
    if (thrown instanceof JerboaError) throw thrown;
    const { code, message, advice } = JerboaError.from(thrown);
    throw new JerboaError(code, message, { cause: thrown, advice });
  }
}
