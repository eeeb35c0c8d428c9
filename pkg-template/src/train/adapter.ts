/** A trained adapter: its files, and where they can go. */

import { JerboaError } from "../index.js";
import type { TrainResult } from "./calls.js";

/** Folder of saved adapters in the origin private file system. */
const FOLDER = "jerboa-adapters";
const CONFIG = "adapter_config.json";
const WEIGHTS = "adapter_model.safetensors";

/** The files of an adapter: a {@link TrainedAdapter}, or those that the user selects. */
export type AdapterFiles = Iterable<File>;

/** A LoRA adapter in peft's format. `model.loadAdapter` takes it as it takes files. */
export class TrainedAdapter implements Iterable<File> {
  /** `adapter_config.json` and `adapter_model.safetensors`, as peft writes them. */
  readonly files: readonly File[];
  /** Steps that were trained; fewer than planned after `stop`. */
  readonly steps: number;

  /** @internal */
  constructor(files: readonly File[], steps: number) {
    this.files = files;
    this.steps = steps;
  }

  [Symbol.iterator](): Iterator<File> {
    return this.files[Symbol.iterator]();
  }

  /** Bytes of both files. */
  get bytes(): number {
    return this.files.reduce((sum, file) => sum + file.size, 0);
  }

  /**
   * Stores the files in the origin private file system, where {@link savedAdapter} finds them by this name. An adapter of
   * the same name is replaced.
   */
  async save(name: string): Promise<void> {
    await stored(`save: '${name}'`, async () => {
      const folder = await folderOf(name, true);
      for (const file of this.files) {
        const stream = await (await folder.getFileHandle(file.name, { create: true })).createWritable();
        await stream.write(file);
        await stream.close();
      }
    });
  }
}

/** Reads an adapter that {@link TrainedAdapter.save} has stored. */
export async function savedAdapter(name: string): Promise<TrainedAdapter> {
  return stored(`savedAdapter: '${name}'`, async () => {
    const folder = await folderOf(name, false);
    const read = async (file: string): Promise<File> => (await folder.getFileHandle(file)).getFile();
    return new TrainedAdapter([await read(CONFIG), await read(WEIGHTS)], 0);
  });
}

/** Lists the names of saved adapters. */
export async function savedAdapters(): Promise<string[]> {
  return stored("savedAdapters", async () => {
    const names = [];
    const folders = (await root()) as FileSystemDirectoryHandle & { keys(): AsyncIterable<string> };
    for await (const name of folders.keys()) names.push(decodeURIComponent(name));
    return names.sort();
  });
}

/** Deletes a saved adapter. */
export async function deleteSavedAdapter(name: string): Promise<void> {
  await stored(`deleteSavedAdapter: '${name}'`, async () => (await root()).removeEntry(encodeURIComponent(name), { recursive: true }));
}

/** The adapter of a run's result. */
export function adapterOf({ config, weights, steps }: TrainResult): TrainedAdapter {
  const files = [new File([config], CONFIG, { type: "application/json" }), new File([weights], WEIGHTS)];
  return new TrainedAdapter(files, steps);
}

/** The bytes of an adapter's files. */
export async function bytesOf(files: AdapterFiles): Promise<{ config: Uint8Array; weights: Uint8Array }> {
  const all = [...files];
  const read = async (name: string): Promise<Uint8Array> => {
    const file = all.find((file) => file instanceof File && file.name === name);
    if (!file) throw new JerboaError("request", `trainLora: 'resume' has no ${name}. Give both files of an adapter.`);
    return new Uint8Array(await file.arrayBuffer());
  };
  return { config: await read(CONFIG), weights: await read(WEIGHTS) };
}

async function root(): Promise<FileSystemDirectoryHandle> {
  if (!(navigator.storage as Partial<StorageManager> | undefined)?.getDirectory) throw new Error("it needs https, or localhost");
  return (await navigator.storage.getDirectory()).getDirectoryHandle(FOLDER, { create: true });
}

async function folderOf(name: string, create: boolean): Promise<FileSystemDirectoryHandle> {
  if (typeof name !== "string" || name === "") throw new JerboaError("request", "the name of an adapter must be a non-empty string.");
  return (await root()).getDirectoryHandle(encodeURIComponent(name), { create });
}

/** Runs a storage operation; its errors name what failed. */
async function stored<T>(what: string, run: () => Promise<T>): Promise<T> {
  try {
    return await run();
  } catch (thrown) {
    if (thrown instanceof JerboaError) throw thrown;
    const { name, message } = thrown as DOMException;
    if (name === "NotFoundError") throw new JerboaError("request", `${what}: there is no saved adapter with this name. savedAdapters() lists them.`, { cause: thrown });
    if (name === "QuotaExceededError") throw new JerboaError("quota", `${what}: the browser's storage for this site is full. Delete models (deleteModel) or adapters (deleteSavedAdapter).`, { cause: thrown });
    throw new JerboaError("store", `${what}: this site's private file system is not available: ${message}. Use the adapter's files instead.`, { cause: thrown });
  }
}
