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

const fileName = (name: string): string => encodeURIComponent(name);

async function folder(): Promise<FileSystemDirectoryHandle> {
  return (await navigator.storage.getDirectory()).getDirectoryHandle(FOLDER, { create: true });
}

/** Writes a file in parts; a file that was not written completely has no valid end, so it is refused. */
async function openWriter(name: string): Promise<{ write(part: Uint8Array): unknown; close(): unknown }> {
  const file = await (await folder()).getFileHandle(fileName(name), { create: true });
  // Chromium 156 loses count of storage that access handles take (crate/js/cache.js), and the size is not known in advance.
  if (!("createSyncAccessHandle" in file) || /Chrome\//.test(navigator.userAgent)) {
    const stream = await (file as FileSystemFileHandle).createWritable();
    return { write: (part) => stream.write(part as Uint8Array<ArrayBuffer>), close: () => stream.close() };
  }
  const access = await (file as unknown as { createSyncAccessHandle(): Promise<SyncAccess> }).createSyncAccessHandle();
  access.truncate(0);
  let at = 0;
  return {
    write: (part) => (at += access.write(part, { at })),
    close: () => (access.flush(), access.close()),
  };
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
  return stored(`session.save: '${name}'`, async () => {
    const writer = await openWriter(name);
    let bytes;
    try {
      bytes = await session.saveState((part) => writer.write(part));
    } finally {
      await writer.close();
      if (bytes === undefined) await deleteSavedSession(name);
    }
    return { bytes };
  });
}

/** Restores a session from a blob, or from the file of this name; returns its tokens. */
export async function restoreState(session: EngineSession, saved: Blob | string): Promise<Uint32Array> {
  const blob = typeof saved === "string" ? await openFile(saved) : saved;
  return session.restoreState(blob.size, async (at, length) => new Uint8Array(await blob.slice(at, at + length).arrayBuffer()));
}

async function openFile(name: string): Promise<File> {
  try {
    return await (await (await folder()).getFileHandle(fileName(name))).getFile();
  } catch (thrown) {
    if ((thrown as { name?: unknown }).name === "NotFoundError") throw invalidRequest(`session.restore: there is no saved session '${name}'. savedSessions() lists them.`);
    throw thrown;
  }
}

/** Lists the saved sessions of this origin. */
export async function savedSessions(): Promise<SavedSession[]> {
  const found: SavedSession[] = [];
  for await (const [name, handle] of (await folder()) as unknown as AsyncIterable<[string, FileSystemFileHandle]>) {
    found.push({ name: decodeURIComponent(name), bytes: (await handle.getFile()).size });
  }
  return found.sort((a, b) => (a.name < b.name ? -1 : 1));
}

/** Deletes a saved session, if it exists. */
export async function deleteSavedSession(name: string): Promise<void> {
  await (await folder()).removeEntry(fileName(name)).catch((thrown: { name?: unknown }) => {
    if (thrown.name !== "NotFoundError") throw thrown;
  });
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
