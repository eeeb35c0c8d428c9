/** Saved sessions as files of the origin private file system, or as blobs. Loaded on first use. */

import type { EngineSession } from "./engine-calls.js";
import { describe } from "./check.js";
import { JerboaError, invalidRequest } from "./errors.js";

/** Folder of the saved sessions. */
const FOLDER = "jerboa-sessions";

/** A saved session. */
export interface SavedSession {
  /** The name that it was saved under. */
  name: string;
  bytes: number;
}

/** Bytes of a new file's name. File systems allow 255, and temporary names add some. */
const MAX_NAME_BYTES = 240;
/** Ends the name of a file that is being written. Names of sessions never contain it: their "+" is encoded. */
const PARTIAL = "+part";

/** The name of a session's file. @throws {@link JerboaError} `request` for a name that no file can have. */
function fileName(where: string, name: string, maxBytes = Infinity): string {
  const file = /\p{Surrogate}/u.test(name) ? "" : encodeURIComponent(name);
  if (/^\.{0,2}$/.test(file) || file.length > maxBytes) throw invalidRequest(`${where}: the name ${describe(name)} cannot be that of a file. Choose another one, of 1 to ${MAX_NAME_BYTES} bytes in percent-encoding.`);
  return file;
}

async function folder(): Promise<FileSystemDirectoryHandle> {
  return (await navigator.storage.getDirectory()).getDirectoryHandle(FOLDER, { create: true });
}

/** Writes a file in parts. The file of that name, if there is one, stays as it is until `close`. */
interface FileWriter {
  write(part: Uint8Array): unknown;
  close(): Promise<void>;
  /** Discards what was written. */
  abort(): Promise<void>;
}

async function openWriter(name: string): Promise<FileWriter> {
  const sessions = await folder();
  if (!("createWritable" in FileSystemFileHandle.prototype)) return openPartial(sessions, name);
  const file = await sessions.getFileHandle(name, { create: true });
  // A saved session is never empty: such a file is new.
  const discard = async (): Promise<void> => {
    if ((await file.getFile()).size === 0) await sessions.removeEntry(name);
  };
  const stream = await file.createWritable().catch(async (thrown) => {
    await discard();
    throw thrown;
  });
  return {
    write: (part) => stream.write(part as Uint8Array<ArrayBuffer>),
    close: () => stream.close(),
    async abort() {
      await stream.abort();
      await discard();
    },
  };
}

/** Writes to a file of another name, which replaces the file at the end: Safari before 26 only writes in place. */
async function openPartial(sessions: FileSystemDirectoryHandle, name: string): Promise<FileWriter> {
  const file = (await sessions.getFileHandle(name + PARTIAL, { create: true })) as unknown as MovableFile;
  const access = await file.createSyncAccessHandle();
  access.truncate(0);
  let at = 0;
  return {
    write: (part) => (at += access.write(part, { at })),
    async close() {
      access.flush();
      access.close();
      // Not every browser replaces a file.
      await file.move(name).catch(async () => {
        await sessions.removeEntry(name);
        await file.move(name);
      });
    },
    async abort() {
      access.close();
      await sessions.removeEntry(name + PARTIAL);
    },
  };
}

/** A file handle of workers. */
interface MovableFile {
  createSyncAccessHandle(): Promise<SyncAccess>;
  move(name: string): Promise<void>;
}

interface SyncAccess {
  truncate(size: number): void;
  write(part: Uint8Array, options: { at: number }): number;
  flush(): void;
  close(): void;
}

/** Saves a session's state: to a file of this name, or as a blob without a name. */
export async function saveState(session: EngineSession, name?: string): Promise<{ bytes: number; blob?: Blob }> {
  if (name === undefined) {
    const parts: BlobPart[] = [];
    const bytes = await session.saveState((part) => void parts.push(part as Uint8Array<ArrayBuffer>));
    return { bytes, blob: new Blob(parts) };
  }
  const file = fileName("session.save", name, MAX_NAME_BYTES);
  return stored(`session.save: '${name}'`, async () => {
    const writer = await openWriter(file);
    try {
      const bytes = await session.saveState((part) => writer.write(part));
      await writer.close();
      return { bytes };
    } catch (thrown) {
      await writer.abort().catch(() => {});
      throw thrown;
    }
  });
}

/** Restores a session from a blob, or from the file of this name; returns its tokens. */
export async function restoreState(session: EngineSession, saved: Blob | string): Promise<Uint32Array> {
  const blob = typeof saved === "string" ? await openFile(saved) : saved;
  return session.restoreState(blob.size, async (at, length) => new Uint8Array(await blob.slice(at, at + length).arrayBuffer()));
}

async function openFile(name: string): Promise<File> {
  const file = fileName("session.restore", name);
  try {
    return await (await (await folder()).getFileHandle(file)).getFile();
  } catch (thrown) {
    if (isMissing(thrown)) throw invalidRequest(`session.restore: there is no saved session '${name}'. savedSessions() lists them.`);
    throw thrown;
  }
}

/** Lists the saved sessions of this origin. */
export async function savedSessions(): Promise<SavedSession[]> {
  const found: SavedSession[] = [];
  for await (const [name, handle] of (await folder()) as unknown as AsyncIterable<[string, FileSystemFileHandle]>) {
    const { size } = await handle.getFile();
    // What is empty or partial is still being written.
    if (size > 0 && !name.endsWith(PARTIAL)) found.push({ name: decodeURIComponent(name), bytes: size });
  }
  return found.sort((a, b) => (a.name < b.name ? -1 : 1));
}

/** Deletes a saved session, if it exists. */
export async function deleteSavedSession(name: string): Promise<void> {
  const file = fileName("deleteSavedSession", name);
  await (await folder()).removeEntry(file).catch((thrown: unknown) => {
    if (!isMissing(thrown)) throw thrown;
  });
}

/** Whether an exception means that no such file exists, also because its name is too long for one. */
function isMissing(thrown: unknown): boolean {
  return ["NotFoundError", "TypeError"].includes((thrown as Error).name);
}

async function stored<T>(what: string, store: () => Promise<T>): Promise<T> {
  try {
    return await store();
  } catch (thrown) {
    const error = JerboaError.from(thrown);
    const { name } = thrown as { name?: unknown };
    if (name === "QuotaExceededError" || /quota|space/i.test(error.message)) throw new JerboaError("quota", `${what} does not fit into this site's storage. Delete saved sessions or models and try again.`, { cause: thrown });
    throw error;
  }
}
