/** The reference implementation's output for the bundled model. */

import { readFile } from "node:fs/promises";
import { ROOT } from "./paths.mjs";

/** The greedy continuation: `prompt`, `ids` including the prompt's, `text`, and the `new` ids and text without them. */
export async function stories() {
  const golden = JSON.parse(await readFile(`${ROOT}/tests/golden/stories260K/golden.json`, "utf8"));
  return { ...golden, newIds: golden.ids.slice(golden.prompt_ids.length), newText: golden.text.slice(golden.prompt.length) };
}
