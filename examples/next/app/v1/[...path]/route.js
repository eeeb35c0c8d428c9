import { createFetch, loadModel } from "jerboa";

/** Models run in the Node process of the server, not on the edge. */
export const runtime = "nodejs";

const jerboa = createFetch({
  chat: () => loadModel("mlx-community/Qwen3-0.6B-4bit"),
  embed: () => loadModel("sentence-transformers/all-MiniLM-L6-v2"),
});

export const GET = (request) => jerboa(request);
export const POST = (request) => jerboa(request);
export const DELETE = (request) => jerboa(request);
