/** The text files of conversations: a memory of their passages over the Embedding tab's model. Loaded with the first file. */

import type { Model } from "jerboa";
import { createMemory, indexedDbStore, type Memory } from "jerboa/memory";
import { embeddingModel } from "../embedding/slot";

const STORE = "jerboa-files";
/** Maximum share of the chat model's context for passages. */
const CONTEXT_SHARE = 0.25;
/** Number of passages to consider. */
const PASSAGES = 12;

let opened: { model: Model; memory: Promise<Memory> } | undefined;

async function memoryOf(): Promise<Memory> {
  const model = await embeddingModel();
  if (opened?.model !== model) {
    await opened?.memory.then((memory) => memory.close()).catch(() => undefined);
    opened = { model, memory: createMemory({ model, store: indexedDbStore(STORE), onModelChange: "reembed", chunk: { maxTokens: 120, overlap: 20 } }) };
  }
  return opened.memory;
}

/** Stores the passages of a conversation's files; their keys are those of `documentOf` in history.ts. */
export async function addFiles(conversation: string, files: { name: string; text: string }[], signal: AbortSignal): Promise<void> {
  const memory = await memoryOf();
  await memory.add(files.map(({ name, text }) => ({ id: `${conversation}/${name}`, text, metadata: { conversation, name } })), { signal });
}

/** The passages of files that match a question; empty if there are none. */
export async function passagesFor(documents: ReadonlySet<string>, question: string, contextLength: number, signal: AbortSignal): Promise<string> {
  const memory = await memoryOf();
  const { context } = await memory.recall(question, { k: PASSAGES, budget: Math.max(64, Math.floor(contextLength * CONTEXT_SHARE)), filter: ({ conversation, name }) => documents.has(`${conversation}/${name}`), signal });
  return context;
}

/** Deletes the passages of files. */
export async function forgetFiles(documents: string[]): Promise<void> {
  await (await memoryOf()).delete({ document: documents });
}
