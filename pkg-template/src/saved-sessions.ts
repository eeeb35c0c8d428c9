/** Saved sessions as files of the origin private file system, or as blobs. Loaded on first use. */

import type { EngineSession } from "./engine-calls.js";
import { JerboaError, invalidRequest } from "./errors.js";

/** Folder of the saved sessions. */
const FOLDER = "jerboa-sessions";

/** A saved session. */
export interface SavedSession {
  /** The name that it was saved under. */
  name: string;
  bytes: number;
}

/** Bytes that a file's name can have wherever the browser uses it as it is. */
const MAX_NAME_BYTES = 240;
/** Ends the name of a file that is being written. No session's file contains it: a "+" in a session's name is encoded. */
const PARTIAL = "+part";

/** The name of a session's file. @throws {@link JerboaError} `request` for a name that no file can have. */
function fileName(where: string, name: string): string {
  const file = /\p{Surrogate}/u.test(name) ? "" : encodeURIComponent(name);
  if (/^\.{0,2}$/.test(file)) throw unusable(where, name);
  return file;
}

function unusable(where: string, name: string): JerboaError {
  return invalidRequest(`${where}: this browser cannot name a file '${name.slice(0, 40)}'. Choose a name of 1 to ${MAX_NAME_BYTES} ASCII letters or digits.`);
}

async function folder(): Promise<FileSystemDirectoryHandle> {
  return (await navigator.storage.getDirectory()).getDirectoryHandle(FOLDER, { create: true });
}

/** Writes a file in parts. */
interface FileWriter {
  write(part: Uint8Array<ArrayBuffer>): unknown;
  close(): unknown;
  abort(): unknown;
}

/** The file handles of workers. */
interface WorkerFileHandle extends FileSystemFileHandle {
  createSyncAccessHandle(): Promise<SyncAccess>;
  move(name: string): Promise<void>;
}

interface SyncAccess {
  truncate(size: number): void;
  write(part: Uint8Array, options: { at: number }): number;
  flush(): void;
  close(): void;
}

function writerOf(access: SyncAccess): FileWriter {
  access.truncate(0);
  let at = 0;
  return {
    write(part) {
      if (access.write(part, { at }) < part.length) throw new Error("no space is left");
      at += part.length;
    },
    close: () => (access.flush(), access.close()),
    abort: () => access.close(),
  };
}

/** Saves a session's state: to a file of this name, or as a blob without a name. */
export async function saveState(session: EngineSession, name?: string): Promise<{ bytes: number; blob?: Blob }> {
  if (name === undefined) {
    const parts: BlobPart[] = [];
    const bytes = await session.saveState((part) => void parts.push(part as Uint8Array<ArrayBuffer>));
    return { bytes, blob: new Blob(parts) };
  }
  const file = fileName("session.save", name);
  const sessions = await folder();
  // A stream holds all bytes in memory (WebKit). Chromium 156 loses count of storage that access handles take
  // (crate/js/cache.js), and the size is not known in advance.
  const inPlace = "createSyncAccessHandle" in FileSystemFileHandle.prototype && !/Chrome\//.test(navigator.userAgent);
  const own = inPlace ? file + PARTIAL : file;
  let handle: WorkerFileHandle | undefined;
  let writer: FileWriter | undefined;
  try {
    handle = (await sessions.getFileHandle(own, { create: true })) as WorkerFileHandle;
    writer = inPlace ? writerOf(await handle.createSyncAccessHandle()) : await handle.createWritable();
    const bytes = await session.saveState((part) => writer!.write(part as Uint8Array<ArrayBuffer>));
    // The earlier file stays as it is until here.
    await writer.close();
    if (inPlace) {
      await handle.move(file).catch(async () => {
        // Not every browser replaces a file.
        await sessions.removeEntry(file);
        await handle!.move(file);
      });
    }
    return { bytes };
  } catch (thrown) {
    await (async () => writer?.abort())().catch(() => {});
    // A saved session is never empty: such a file is new.
    if (inPlace || (await handle?.getFile())?.size === 0) await sessions.removeEntry(own).catch(() => {});
    const { name: kind, message } = thrown as Error;
    if (/quota|space/i.test(kind + message)) throw new JerboaError("quota", `session.save: '${name}' does not fit into this site's storage. Delete saved sessions or models and try again.`, { cause: thrown });
    throw !handle && file.length > MAX_NAME_BYTES ? unusable("session.save", name) : thrown;
  }
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
    if ((thrown as Error).name === "NotFoundError") throw invalidRequest(`session.restore: there is no saved session '${name}'. savedSessions() lists them.`);
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
  await (await folder()).removeEntry(file).catch((thrown: Error) => {
    if (thrown.name !== "NotFoundError") throw thrown;
  });
}
