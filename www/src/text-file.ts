/** Text files that the user adds. */

import { COMPOSER } from "./strings";

/** Maximum size in bytes, as in the message. */
const MAX_TEXT_BYTES = 4e6;

/** Why a file cannot be read as text; empty if it can. */
export async function textFileProblem(file: File): Promise<string> {
  if (file.size > MAX_TEXT_BYTES) return COMPOSER.tooLarge(file.name);
  try {
    return (await file.text()).includes("\u0000") ? COMPOSER.notText(file.name) : "";
  } catch {
    // A folder, or a file that is gone.
    return COMPOSER.unreadable(file.name);
  }
}
