/** What the reference implementation makes of the bundled model. */

import { readFile } from "node:fs/promises";
import { ROOT } from "./places.mjs";

/** The greedy continuation: `prompt`, `ids` with the prompt's in front, `text`, `new` ids and text without them. */
export async function stories() {
  const golden = JSON.parse(await readFile(`${ROOT}/tests/golden/stories260K/golden.json`, "utf8"));
  return { ...golden, newIds: golden.ids.slice(golden.prompt_ids.length), newText: golden.text.slice(golden.prompt.length) };
}
