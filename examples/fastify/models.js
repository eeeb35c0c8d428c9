/** The models that the server offers, by name; each loads with its first request. */

import { createFetch, loadModel } from "jerboa";

export const jerboa = createFetch({
  chat: () => loadModel("mlx-community/Qwen3-0.6B-4bit"),
  embed: () => loadModel("sentence-transformers/all-MiniLM-L6-v2"),
});
