/** A folder with a random BERT of all-MiniLM-L6-v2's shape and its real tokenizer, as on the Hub. */

import { mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { gunzipSync } from "node:zlib";
import { checkpoint } from "../../memory/support/minilm.mjs";
import { ROOT } from "./paths.mjs";

/** Writes it, 90 MB; with only its first `layers`, for tests of the page, 47 MB and 7 MB per layer. */
export async function writeMinilm(folder, layers = 6) {
  const golden = (name) => readFile(join(ROOT, "tests/golden", name));
  const weights = JSON.parse(await golden("embed/weights.json"));
  weights.config.num_hidden_layers = layers;
  const kept = (name) => !(Number(/\.layer\.(\d+)\./.exec(name)?.[1] ?? 0) >= layers);
  weights.tensors = Object.fromEntries(Object.entries(weights.tensors).filter(([name]) => kept(name)));
  await mkdir(join(folder, "1_Pooling"), { recursive: true });
  const write = (name, data) => writeFile(join(folder, name), data);
  await write("model.safetensors", checkpoint(weights));
  await write("tokenizer.json", gunzipSync(await golden("text/tokenizers/minilm/tokenizer.json.gz")));
  const module = (type, path) => ({ type: `sentence_transformers.models.${type}`, path });
  const files = {
    "config.json": weights.config,
    "tokenizer_config.json": { tokenizer_class: "BertTokenizer", do_lower_case: true, model_max_length: 512 },
    "sentence_bert_config.json": { max_seq_length: 256, do_lower_case: false },
    "modules.json": [module("Transformer", ""), module("Pooling", "1_Pooling"), module("Normalize", "2_Normalize")],
    "1_Pooling/config.json": { pooling_mode_mean_tokens: true },
  };
  for (const [name, value] of Object.entries(files)) await write(name, JSON.stringify(value));
}
