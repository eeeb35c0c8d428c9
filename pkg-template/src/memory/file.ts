/** `jerboa/memory/file`, for Node: a store in one append-only file. The byte format is in log.ts. */

import { copyFile, open, readFile, rename, rm, type FileHandle } from "node:fs/promises";
import { dirname, resolve } from "node:path";
import { JerboaError } from "../errors.js";
import { decodeFrame, encodeFrame, findFrame, FRAME_BYTES, header, HEADER_BYTES, headerVersion, LOG_VERSION, payloadLength, readLayout1 } from "./log.js";
import { RecordTable } from "./store-memory.js";
import type { StoreBatch, StoreChanges, MemoryRecord, MemoryStore, StoreState } from "./types.js";

/** A file is rewritten on opening when more than this many bytes, and at least half of it, are obsolete. */
const MIN_GARBAGE_BYTES = 1 << 20;

/** Stores records in a file and keeps all of them in memory. One process may have it open at a time. */
export class FileStore implements MemoryStore {
  readonly repairs: string[] = [];
  readonly #path: string;
  #table = new RecordTable();
  #file: FileHandle | undefined;
  #end = 0;
  #opening: Promise<void> | undefined;
  #turn: Promise<unknown> = Promise.resolve();

  constructor(path: string) {
    this.#path = resolve(path);
  }

  async open(): Promise<StoreState> {
    this.#opening ??= this.#start().catch(async (error) => {
      this.#opening = undefined;
      throw failure(error, this.#path);
    });
    await this.#opening;
    return this.#table.state;
  }

  async state(): Promise<StoreState> {
    return this.#table.state;
  }

  async changes(since: number, emit: (part: StoreChanges) => void): Promise<number> {
    emit(this.#table.changes(since));
    return this.#table.state.generation;
  }

  apply(batch: StoreBatch): Promise<number> {
    const turn = this.#turn.then(() => this.#append(batch));
    this.#turn = turn.catch(() => undefined);
    return turn;
  }

  async get(ids: string[]): Promise<(MemoryRecord | undefined)[]> {
    return ids.map((id) => this.#table.records.get(id)?.record);
  }

  async close(): Promise<void> {
    await this.#turn;
    const file = this.#file;
    this.#file = this.#opening = undefined;
    if (!file) return;
    await file.close();
    await rm(lockPath(this.#path), { force: true });
  }

  async #append(batch: StoreBatch): Promise<number> {
    const file = this.#file;
    if (!file) throw new JerboaError("store", `The store ${this.#path} is closed. Open it again with createMemory().`);
    // Validate before writing: a refused batch leaves no trace.
    const trial = new RecordTable();
    trial.state = this.#table.state;
    trial.apply({ ...batch, put: batch.put.slice(0, 1) });
    const frame = encodeFrame(batch);
    try {
      await writeAll(file, frame, this.#end);
      await file.datasync();
    } catch (error) {
      // Remove a partial write; if even that fails, opening ignores it.
      await file.truncate(this.#end).catch(() => undefined);
      throw failure(error, this.#path);
    }
    this.#end += frame.length;
    return this.#table.apply(batch);
  }

  async #start(): Promise<void> {
    await lock(this.#path);
    try {
      await this.#load();
    } catch (error) {
      await this.#file?.close();
      this.#file = undefined;
      await rm(lockPath(this.#path), { force: true });
      throw error;
    }
  }

  async #load(): Promise<void> {
    this.#table = new RecordTable();
    this.repairs.length = 0;
    const file = await open(this.#path, "r+").catch((error) => {
      if (error?.code === "ENOENT") return undefined;
      throw error;
    });
    if (!file) return this.#rewrite([]);
    this.#file = file;
    const { size } = await file.stat();
    const version = headerVersion(await readAt(file, 0, Math.min(size, HEADER_BYTES)));
    // A crash while the file was created leaves a partial header.
    if (size < HEADER_BYTES && size > 0 && headerStart(await readAt(file, 0, size))) return this.#rewrite([]);
    if (size === 0) return this.#rewrite([]);
    if (version === undefined) return this.#migrate(file);
    if (version > LOG_VERSION) {
      const message = `${this.#path} has layout ${version}, from a newer version of jerboa; this version reads up to ${LOG_VERSION}. Update the package. The file was not changed.`;
      throw new JerboaError("store_version", message);
    }
    const garbage = await this.#replay(file, size);
    if (garbage > MIN_GARBAGE_BYTES && garbage * 2 > this.#end) await this.#rewrite(this.#live());
  }

  /** Reads all frames; returns the number of obsolete bytes. */
  async #replay(file: FileHandle, size: number): Promise<number> {
    let at = HEADER_BYTES;
    const bytes = new Map<string, number>();
    while (at < size) {
      const length = payloadLength(await readAt(file, at, Math.min(FRAME_BYTES, size - at)));
      const whole = length !== undefined && at + FRAME_BYTES + length <= size;
      const batch = whole ? decodeFrame(await readAt(file, at, FRAME_BYTES + length)) : undefined;
      if (batch) {
        this.#table.apply(batch);
        for (const record of batch.put) bytes.set(record.id, (FRAME_BYTES + length!) / batch.put.length);
        at += FRAME_BYTES + length!;
        continue;
      }
      const rest = await readAt(file, at, size - at);
      const next = findFrame(rest, 1);
      if (next < 0) {
        // The last write was interrupted, so it does not count.
        this.repairs.push(`${this.#path}: the last write was incomplete; its ${size - at} bytes were removed. All earlier records are intact.`);
        await file.truncate(at);
        break;
      }
      this.repairs.push(`${this.#path}: ${next} bytes at ${at} are damaged; the records in them are lost, all others are intact.`);
      at += next;
    }
    this.#end = at;
    let live = 0;
    for (const id of this.#table.records.keys()) live += bytes.get(id) ?? 0;
    return this.#end - HEADER_BYTES - live;
  }

  async #migrate(file: FileHandle): Promise<void> {
    const batch = readLayout1(await readFile(this.#path, "utf8"), this.#path);
    const backup = `${this.#path}.v1`;
    await copyFile(this.#path, backup);
    await file.close();
    this.#file = undefined;
    if (batch.put.length) this.#table.apply(batch);
    await this.#rewrite(this.#live());
    this.repairs.push(`${this.#path} was migrated from layout 1; the old file is kept as ${backup}.`);
  }

  /** The records as batches of moderate size. */
  #live(): StoreBatch[] {
    const records = [...this.#table.records.values()].map((entry) => entry.record);
    const { model = "", dims } = this.#table.state;
    const batches: StoreBatch[] = [];
    for (let i = 0; i < records.length; i += 512) batches.push({ model, dims, put: records.slice(i, i + 512), remove: [] });
    return batches;
  }

  /** Writes a new file and replaces the old one atomically. */
  async #rewrite(batches: StoreBatch[]): Promise<void> {
    const fresh = `${this.#path}.new`;
    const file = await open(fresh, "w+");
    let end = 0;
    try {
      for (const bytes of [header(), ...batches.map(encodeFrame)]) {
        await writeAll(file, bytes, end);
        end += bytes.length;
      }
      await file.datasync();
      await rename(fresh, this.#path);
    } catch (error) {
      await file.close();
      await rm(fresh, { force: true });
      throw error;
    }
    await syncFolder(this.#path);
    await this.#file?.close();
    this.#file = file;
    this.#end = end;
  }
}

/** Opens a store in a file; creates the file if it does not exist, but not its folder. */
export function fileStore(path: string): MemoryStore {
  return new FileStore(path);
}

function headerStart(bytes: Uint8Array): boolean {
  const whole = header();
  return bytes.every((byte, i) => byte === whole[i]);
}

async function readAt(file: FileHandle, at: number, length: number): Promise<Uint8Array> {
  const bytes = new Uint8Array(length);
  let done = 0;
  while (done < length) {
    const { bytesRead } = await file.read(bytes, done, length - done, at + done);
    if (!bytesRead) break;
    done += bytesRead;
  }
  return bytes.subarray(0, done);
}

async function writeAll(file: FileHandle, bytes: Uint8Array, at: number): Promise<void> {
  for (let done = 0; done < bytes.length; ) {
    const { bytesWritten } = await file.write(bytes, done, bytes.length - done, at + done);
    done += bytesWritten;
  }
}

/** Makes a rename durable across a power loss, where the system can sync a folder. */
async function syncFolder(path: string): Promise<void> {
  const folder = await open(dirname(path), "r").catch(() => undefined);
  await folder?.datasync().catch(() => undefined);
  await folder?.close();
}

function lockPath(path: string): string {
  return `${path}.lock`;
}

/**
 * Locks the store: two writers would overwrite each other's frames. The lock names its process, so that a lock left by
 * a crash is ignored.
 */
async function lock(path: string): Promise<void> {
  const { process } = globalThis as unknown as { process: { pid: number; kill(pid: number, signal: 0): void } };
  for (let attempt = 0; attempt < 2; attempt++) {
    try {
      const file = await open(lockPath(path), "wx");
      await file.writeFile(String(process.pid));
      return await file.close();
    } catch (error) {
      if ((error as { code?: string }).code !== "EEXIST") throw error;
    }
    const owner = Number(await readFile(lockPath(path), "utf8").catch(() => ""));
    if (owner && runs(process, owner)) break;
    await rm(lockPath(path), { force: true });
  }
  throw new JerboaError("store_locked", `${path} is already open in this process or another. Close that memory first; if no process uses it, delete ${lockPath(path)}.`);
}

function runs(process: { kill(pid: number, signal: 0): void }, pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as { code?: string }).code === "EPERM";
  }
}

/** Converts system errors to `JerboaError`. */
function failure(error: unknown, path: string): unknown {
  if (error instanceof JerboaError) return error;
  const { code, message } = error as { code?: string; message?: string };
  if (code === "ENOSPC" || code === "EDQUOT" || code === "EFBIG") {
    return new JerboaError("quota", `The disk is full, so ${path} cannot grow. Earlier records are intact. Free disk space and add the rest again.`, { cause: error });
  }
  return new JerboaError("store", `The store ${path} could not be used: ${message ?? String(error)}.`, { cause: error });
}
