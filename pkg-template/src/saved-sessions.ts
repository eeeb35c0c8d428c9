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

async function folder(where: string): Promise<FileSystemDirectoryHandle> {
  // It is missing on pages that are not secure, and outside of browsers.
  const storage = (globalThis.navigator as Partial<Navigator> | undefined)?.storage;
  if (!storage?.getDirectory) throw new JerboaError("store", `${where}: this page has no private file system. Open it over https, or use the Blob of session.save().`);
  return (await storage.getDirectory()).getDirectoryHandle(FOLDER, { create: true });
}

/** Milliseconds that an operation on a session's file waits for another tab's. */
const MAX_WAIT_MS = 60_000;

/** Runs an operation on the file of a session, one at a time over all tabs. */
async function exclusively<T>(where: string, name: string, run: (file: string) => Promise<T>): Promise<T> {
  const file = fileName(where, name);
  const locks = (globalThis.navigator as Partial<Navigator> | undefined)?.locks;
  try {
    return await (locks ? locks.request(`jerboa:session:${file}`, { signal: AbortSignal.timeout(MAX_WAIT_MS) }, () => run(file)) : run(file));
  } catch (thrown) {
    if (!(thrown instanceof DOMException)) throw thrown;
    const { name: kind, message } = thrown;
    if (/^(Timeout|NoModificationAllowed|InvalidState)Error/.test(kind)) throw new JerboaError("store_locked", `${where}: '${name}' is in use. Try again in a moment, or choose another name.`, { cause: thrown });
    throw new JerboaError("store", `${where}: the private file system failed (${kind}: ${message}). Close this site's other tabs and try again.`, { cause: thrown });
  }
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
  return exclusively("session.save", name, (file) => saveFile(session, name, file));
}

async function saveFile(session: EngineSession, name: string, file: string): Promise<{ bytes: number }> {
  const sessions = await folder("session.save");
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
  const restore = (blob: Blob): Promise<Uint32Array> => session.restoreState(blob.size, async (at, length) => new Uint8Array(await blob.slice(at, at + length).arrayBuffer()));
  if (typeof saved !== "string") return restore(saved);
  return exclusively("session.restore", saved, async (file) => restore(await openFile(saved, file)));
}

async function openFile(name: string, file: string): Promise<File> {
  try {
    return await (await (await folder("session.restore")).getFileHandle(file)).getFile();
  } catch (thrown) {
    if ((thrown as Error).name === "NotFoundError") throw invalidRequest(`session.restore: there is no saved session '${name}'. savedSessions() lists them.`);
    throw thrown;
  }
}

/** Lists the saved sessions of this origin. */
export async function savedSessions(): Promise<SavedSession[]> {
  const found: SavedSession[] = [];
  for await (const [name, handle] of (await folder("savedSessions")) as unknown as AsyncIterable<[string, FileSystemFileHandle]>) {
    // It may be deleted meanwhile.
    const size = (await handle.getFile().catch(() => undefined))?.size ?? 0;
    // What is empty or partial is still being written.
    if (size > 0 && !name.endsWith(PARTIAL)) found.push({ name: decodeURIComponent(name), bytes: size });
  }
  return found.sort((a, b) => (a.name < b.name ? -1 : 1));
}

/** Deletes a saved session, if it exists. */
export async function deleteSavedSession(name: string): Promise<void> {
  await exclusively("deleteSavedSession", name, async (file) =>
    (await folder("deleteSavedSession")).removeEntry(file).catch((thrown: Error) => {
      if (thrown.name !== "NotFoundError") throw thrown;
    }),
  );
}
