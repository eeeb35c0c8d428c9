/**
 * Downloaded models in Node: the cache of `huggingface_hub` (blobs, refs, snapshots), shared with it in both directions.
 *
 * The engine stores a file in parts, then a manifest. The parts of a file of the Hub are ranges of one unfinished blob;
 * its manifest finishes it. Everything else, such as measured kernel choices, is a file of its own in the folder that the
 * cache has for libraries.
 */

import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { appendFile, copyFile, mkdir, open, readdir, readFile, readlink, rename, rm, rmdir, stat, symlink, writeFile } from "node:fs/promises";
import { homedir } from "node:os";
import { basename, dirname, join, relative, sep } from "node:path";
import type { FileStoreLike } from "./platform.js";

/** Bytes of a part: HubOptions::part_size in crate/src/hub/mod.rs. */
const PART_BYTES = 8 << 20;
/** URL prefix of all entry names; crate/js/cache.js has the same. */
const PREFIX = "https://jerboa.invalid/";
/** The Hub whose models the cache holds, besides that of HF_ENDPOINT. */
const HUB = "https://huggingface.co";
/** Name of a manifest's entry. */
const MANIFEST = "manifest";
/** Ends of the names of an unfinished blob: of its bytes, and of the list of its parts. */
const UNFINISHED = ".jerboa-unfinished";
const UNFINISHED_PARTS = ".jerboa-parts";

const env = (name: string): string | undefined => process.env[name]?.replace(/^~(?=$|[/\\])/, homedir());
const home = (): string => env("HF_HOME") ?? join(env("XDG_CACHE_HOME") ?? join(homedir(), ".cache"), "huggingface");
const hub = (): string => env("HF_HUB_CACHE") ?? env("HUGGINGFACE_HUB_CACHE") ?? join(home(), "hub");
const assets = (): string => join(env("HF_ASSETS_CACHE") ?? join(home(), "assets"), "jerboa");

/** The user's token for the Hub, as `hf auth login` stores it. */
export async function hubToken(): Promise<string | undefined> {
  const given = process.env.HF_TOKEN ?? process.env.HUGGING_FACE_HUB_TOKEN;
  const token = given ?? (await readFile(env("HF_TOKEN_PATH") ?? join(home(), "token"), "utf8").catch(() => ""));
  return token.trim() || undefined;
}

/** The engine's record of a file; `content` is null for one that the server lacks. */
interface Manifest {
  version: 1;
  commit: string | null;
  content: { size: number; validator: string | null; part_size: number; parts: number[]; sha256?: string } | null;
}

const encode = (text: string): string => encodeURIComponent(text).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
const isCommit = (revision: string): boolean => /^[0-9a-f]{40}$/.test(revision);
const partCount = (size: number): number => Math.ceil(size / PART_BYTES);

/** The fingerprint in a part's key: FNV-1a of the content's identity, as in crate/src/hub/cache.rs. */
function fingerprint(validator: string | null, size: number): string {
  let hash = 0xcbf29ce484222325n;
  for (const byte of new TextEncoder().encode(`${validator ?? ""}/${size}/${PART_BYTES}`)) hash = BigInt.asUintN(64, (hash ^ BigInt(byte)) * 0x100000001b3n);
  return hash.toString(16).padStart(16, "0");
}

/** Writes a file that other processes see completely or not at all. */
async function writeWhole(path: string, bytes: Uint8Array | string): Promise<void> {
  await mkdir(dirname(path), { recursive: true });
  const own = `${path}.${crypto.randomUUID()}`;
  try {
    await writeFile(own, bytes);
    await rename(own, path);
  } catch (thrown) {
    await rm(own, { force: true });
    throw thrown;
  }
}

async function readRange(path: string, offset: number, length: number): Promise<Uint8Array<ArrayBuffer> | undefined> {
  const file = await open(path, "r");
  try {
    const bytes = new Uint8Array(length);
    for (let done = 0; done < length; ) {
      const { bytesRead } = await file.read(bytes, done, length - done, offset + done);
      if (bytesRead === 0) return undefined;
      done += bytesRead;
    }
    return bytes;
  } finally {
    await file.close();
  }
}

/** A store's errors in the names of the Cache API. */
function storeError(thrown: unknown): unknown {
  const { code, message } = thrown as { code?: string; message: string };
  return code === "ENOSPC" || code === "EDQUOT" ? new DOMException(message, "QuotaExceededError") : thrown;
}

/** Removes folders that are empty, from this one upwards. */
async function removeEmpty(folder: string, root: string): Promise<void> {
  for (let at = folder; at.startsWith(root + sep); at = dirname(at)) if (!(await rmdir(at).then(() => true, () => false))) return;
}

/** Paths of all files below a folder, relative to it. Links count as files. */
async function filesBelow(folder: string): Promise<string[]> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true }).catch(() => []);
  return entries.filter((entry) => !entry.isDirectory()).map((entry) => relative(folder, join(entry.parentPath ?? entry.path!, entry.name)).split(sep).join("/"));
}

/** A file of a repository of the Hub at a revision. */
class HubFile {
  /** The repository's folder. */
  readonly repo: string;
  /** Where the engine's own record of the file is. */
  readonly record: string;

  constructor(source: string, id: string, readonly revision: string, readonly name: string) {
    this.repo = join(hub(), repoFolder(id));
    this.record = join(assets(), encode(source), encode(name), MANIFEST);
  }

  snapshot(commit: string): string {
    return join(this.repo, "snapshots", commit, ...this.name.split("/"));
  }

  absence(commit: string): string {
    return join(this.repo, ".no_exist", commit, ...this.name.split("/"));
  }

  /** Names the file that an unfinished blob belongs to. */
  marker(print: string): string {
    return join(dirname(this.record), print + UNFINISHED);
  }

  unfinished(print: string): string {
    return join(this.repo, "blobs", print + UNFINISHED);
  }

  unfinishedParts(print: string): string {
    return join(this.repo, "blobs", print + UNFINISHED_PARTS);
  }

  /** The commit that the revision had when it was last asked for. */
  async commit(): Promise<string | undefined> {
    if (isCommit(this.revision)) return this.revision;
    const text = await readFile(join(this.repo, "refs", ...this.revision.split("/")), "utf8").catch(() => "");
    return isCommit(text.trim()) ? text.trim() : undefined;
  }

  /** The engine's record, if the file that it describes is still there. */
  async own(): Promise<Manifest | undefined> {
    try {
      const manifest = JSON.parse(await readFile(this.record, "utf8")) as Manifest;
      const { commit, content } = manifest;
      if (!content || !commit || (await stat(this.snapshot(commit)).catch(() => undefined))?.size === content.size) return manifest;
      return (await this.parts(fingerprint(content.validator, content.size))).size > 0 ? manifest : undefined;
    } catch {
      return undefined;
    }
  }

  /** The record of a file that another program downloaded. */
  async foreign(commit: string): Promise<Manifest | undefined> {
    const path = this.snapshot(commit);
    const size = (await stat(path).catch(() => undefined))?.size;
    if (size === undefined) return (await stat(this.absence(commit)).catch(() => undefined)) && { version: 1, commit, content: null };
    // A blob's name is its ETag.
    const blob = await readlink(path).then((target) => basename(target), () => undefined);
    const parts = Array.from({ length: partCount(size) }, (_, i) => i);
    const sha256 = blob && /^[0-9a-f]{64}$/.test(blob) ? { sha256: blob } : {};
    return { version: 1, commit, content: { size, validator: blob ?? null, part_size: PART_BYTES, parts, ...sha256 } };
  }

  /** The record of the file: of the revision's commit if it is there, else of an earlier one. */
  async manifest(): Promise<Manifest | undefined> {
    const commit = await this.commit();
    const own = await this.own();
    if (own && (!commit || own.commit === commit)) return own;
    return (commit && (await this.foreign(commit))) || own;
  }

  /** The complete file with this fingerprint. */
  async complete(print: string): Promise<string | undefined> {
    const commit = await this.commit();
    for (const manifest of [await this.own(), commit ? await this.foreign(commit) : undefined]) {
      const { content } = manifest ?? {};
      if (!content || !manifest!.commit || fingerprint(content.validator, content.size) !== print) continue;
      const path = this.snapshot(manifest!.commit);
      if ((await stat(path).catch(() => undefined))?.size === content.size) return path;
    }
    return undefined;
  }

  /** The lengths of the parts of an unfinished blob, by index. */
  async parts(print: string): Promise<Map<number, number>> {
    const text = await readFile(this.unfinishedParts(print), "utf8").catch(() => "");
    return new Map(text.split("\n").filter(Boolean).map((line) => line.split(" ").map(Number) as [number, number]));
  }

  async readPart(print: string, index: number, length: number): Promise<Uint8Array<ArrayBuffer> | undefined> {
    const complete = await this.complete(print);
    const path = complete ?? ((await this.parts(print)).has(index) ? this.unfinished(print) : undefined);
    return path === undefined ? undefined : readRange(path, index * PART_BYTES, length);
  }

  async writePart(print: string, index: number, bytes: Uint8Array): Promise<void> {
    if (await this.complete(print)) return;
    await mkdir(dirname(this.unfinished(print)), { recursive: true });
    const file = await open(this.unfinished(print), "r+").catch(async () => {
      await writeWhole(this.marker(print), "");
      // Another part may have created it meanwhile: "a" does not truncate.
      await appendFile(this.unfinished(print), "");
      return open(this.unfinished(print), "r+");
    });
    try {
      await file.write(bytes, 0, bytes.length, index * PART_BYTES);
    } finally {
      await file.close();
    }
    await appendFile(this.unfinishedParts(print), `${index} ${bytes.length}\n`);
  }

  async removePart(print: string, index: number): Promise<void> {
    const parts = await this.parts(print);
    if (!parts.delete(index)) return;
    if (parts.size > 0) return writeWhole(this.unfinishedParts(print), [...parts].map(([part, length]) => `${part} ${length}\n`).join(""));
    for (const path of [this.unfinishedParts(print), this.unfinished(print), this.marker(print)]) await rm(path, { force: true });
    await removeEmpty(dirname(this.unfinished(print)), hub());
    await removeEmpty(dirname(this.marker(print)), assets());
  }

  async writeManifest(bytes: Uint8Array): Promise<void> {
    const { commit, content } = JSON.parse(new TextDecoder().decode(bytes)) as Manifest;
    if (commit && content) await this.#finish(commit, content);
    else if (commit && !content) await writeWhole(this.absence(commit), "");
    if (commit && !isCommit(this.revision)) await writeWhole(join(this.repo, "refs", ...this.revision.split("/")), commit);
    await writeWhole(this.record, bytes);
  }

  /** Turns an unfinished blob that has all parts into a blob with its link. */
  async #finish(commit: string, content: NonNullable<Manifest["content"]>): Promise<void> {
    const print = fingerprint(content.validator, content.size);
    const link = this.snapshot(commit);
    if (await this.complete(print)) return;
    if ((await this.parts(print)).size < partCount(content.size)) return this.#relink(commit, print, content.size);
    const unfinished = this.unfinished(print);
    if (content.size === 0) await writeWhole(unfinished, "");
    const blob = join(this.repo, "blobs", await blobName(unfinished, content));
    await rename(unfinished, blob);
    for (const path of [this.unfinishedParts(print), this.marker(print)]) await rm(path, { force: true });
    await this.#link(link, blob);
  }

  /** A file that a new commit has not changed: links it there, too. */
  async #relink(commit: string, print: string, size: number): Promise<void> {
    const own = await this.own();
    if (!own?.commit || !own.content || fingerprint(own.content.validator, own.content.size) !== print) return;
    const from = this.snapshot(own.commit);
    if ((await stat(from).catch(() => undefined))?.size !== size) return;
    const blob = await readlink(from).then((target) => join(dirname(from), target), () => from);
    await this.#link(this.snapshot(commit), blob);
  }

  async #link(link: string, blob: string): Promise<void> {
    await mkdir(dirname(link), { recursive: true });
    await rm(link, { force: true });
    // Windows allows links in its developer mode only; huggingface_hub copies there, too.
    await symlink(relative(dirname(link), blob), link).catch(() => copyFile(blob, link));
  }

  /** Removes the file at the revision's commit, and its blob if no other snapshot links it. */
  async remove(): Promise<void> {
    const manifest = await this.manifest();
    await rm(this.record, { force: true });
    await removeEmpty(dirname(this.record), assets());
    if (!manifest?.commit) return;
    const link = this.snapshot(manifest.commit);
    const target = await readlink(link).catch(() => undefined);
    await rm(link, { force: true });
    await rm(this.absence(manifest.commit), { force: true });
    await removeEmpty(dirname(this.absence(manifest.commit)), hub());
    await removeEmpty(dirname(link), hub());
    if (target) {
      const blob = join(dirname(link), target);
      if (!(await this.#isLinked(basename(blob)))) await rm(blob, { force: true });
      await removeEmpty(dirname(blob), hub());
    }
    const left = await readdir(join(this.repo, "snapshots", manifest.commit)).catch(() => []);
    const ref = join(this.repo, "refs", ...this.revision.split("/"));
    if (left.length === 0 && !isCommit(this.revision)) {
      await rm(ref, { force: true });
      await removeEmpty(dirname(ref), hub());
    }
  }

  async #isLinked(blob: string): Promise<boolean> {
    const snapshots = join(this.repo, "snapshots");
    for (const file of await filesBelow(snapshots)) if (basename(await readlink(join(snapshots, file)).catch(() => "")) === blob) return true;
    return false;
  }
}

/** The folder of a repository in the cache. */
export const hubFolder = (id: string): string => join(hub(), repoFolder(id));

const repoFolder = (id: string): string => `models--${id.replaceAll("/", "--")}`;

/** The name of a blob: the ETag that the Hub gives for its content. */
async function blobName(path: string, { sha256, validator, size }: NonNullable<Manifest["content"]>): Promise<string> {
  const etag = sha256 ?? validator ?? "";
  if (/^([0-9a-f]{40}|[0-9a-f]{64})$/.test(etag)) return etag;
  // Small files are named by git's hash, large ones by their SHA-256; without a name of the server, either is unique.
  const hash = createHash("sha256");
  if (size > 0) for await (const chunk of createReadStream(path)) hash.update(chunk);
  return hash.digest("hex");
}

/** A key in its segments. */
interface Entry {
  source: string;
  file: string;
  name: string;
}

/** The store of the engine over the folders of the Hub's cache. */
export class ModelStore implements FileStoreLike {
  async match(key: string): Promise<{ arrayBuffer(): Promise<ArrayBuffer> } | undefined> {
    const bytes = await this.#read(key).catch(() => undefined);
    return bytes && { arrayBuffer: async () => bytes.buffer };
  }

  async put(key: string, response: Response): Promise<void> {
    const bytes = new Uint8Array(await response.arrayBuffer());
    try {
      const [file, part] = hubPart(key);
      if (file && part) await file.writePart(part.print, part.index, bytes);
      else if (file) await file.writeManifest(bytes);
      else await writeWhole(assetPath(key), bytes);
    } catch (thrown) {
      throw storeError(thrown);
    }
  }

  async delete(key: string): Promise<void> {
    const [file, part] = hubPart(key);
    if (file && part) return file.removePart(part.print, part.index);
    if (file) return file.remove();
    await rm(assetPath(key), { force: true });
    await removeEmpty(dirname(assetPath(key)), assets());
  }

  async keys(): Promise<{ url: string }[]> {
    const records = await filesBelow(assets());
    const found = new Set(records.filter((name) => !hubPart(PREFIX + name)[0]));
    for (const [base, file] of await hubFiles(records)) {
      const manifest = await file.manifest();
      if (manifest) found.add(`${base}/${MANIFEST}`);
      const { content } = manifest ?? {};
      if (!content) continue;
      const print = fingerprint(content.validator, content.size);
      if (!(await file.complete(print))) continue;
      for (let part = 0; part < partCount(content.size); part++) found.add(`${base}/${print}-${part}-${Math.min(PART_BYTES, content.size - part * PART_BYTES)}`);
    }
    for (const marker of records.filter((name) => name.endsWith(UNFINISHED))) {
      const print = basename(marker, UNFINISHED);
      const [file] = hubPart(PREFIX + marker);
      for (const [part, length] of (await file?.parts(print)) ?? []) found.add(`${dirname(marker)}/${print}-${part}-${length}`);
    }
    return [...found].map((name) => ({ url: PREFIX + name }));
  }

  async #read(key: string): Promise<Uint8Array<ArrayBuffer> | undefined> {
    const [file, part] = hubPart(key);
    if (file && part) return file.readPart(part.print, part.index, part.length);
    if (!file) return new Uint8Array(await readFile(assetPath(key)));
    const manifest = await file.manifest();
    return manifest && new TextEncoder().encode(JSON.stringify(manifest));
  }
}

const assetPath = (key: string): string => join(assets(), ...key.slice(PREFIX.length).split("/"));

function entryOf(key: string): Entry | undefined {
  const [source, file, name, ...more] = key.slice(PREFIX.length).split("/");
  if (!source || !file || !name || more.length > 0 || file.startsWith("~")) return undefined;
  try {
    return { source: decodeURIComponent(source), file: decodeURIComponent(file), name };
  } catch {
    return undefined;
  }
}

/** Addresses of the Hub whose models are in the cache. */
const hubs = (): string[] => [HUB, ...(process.env.HF_ENDPOINT ? [process.env.HF_ENDPOINT.replace(/\/+$/, "")] : [])];

/** The file of the Hub that a key names, and the part of it; nothing for other keys. */
function hubPart(key: string): [HubFile?, { print: string; index: number; length: number }?] {
  const entry = entryOf(key);
  const [, endpoint, id, revision] = /^(.+)\/([^/]+\/[^/@]+)@(.+)$/.exec(entry?.source ?? "") ?? [];
  if (!entry || !id || !revision || !hubs().includes(endpoint!)) return [];
  // Names never lead out of the repository's folder.
  if ([...entry.file.split("/"), ...revision.split("/"), ...id.split("/")].some((name) => name === "" || name === "." || name === "..")) return [];
  const file = new HubFile(entry.source, id, revision, entry.file);
  const [, print, index, length] = /^([0-9a-f]{16})-(\d+)-(\d+)$/.exec(entry.name) ?? [];
  if (print) return [file, { print, index: Number(index), length: Number(length) }];
  return entry.name === MANIFEST || entry.name.endsWith(UNFINISHED) ? [file] : [];
}

/** The files of the cache that a revision or one of the engine's records names, by the first part of their keys. */
async function hubFiles(records: string[]): Promise<Map<string, HubFile>> {
  const found = new Map<string, HubFile>();
  for (const folder of await readdir(hub()).catch(() => [])) {
    if (!/^models--.+--.+/.test(folder)) continue;
    const id = folder.slice("models--".length).split("--").join("/");
    const endpoint = hubs().at(-1)!;
    for (const revision of await filesBelow(join(hub(), folder, "refs"))) {
      const commit = (await readFile(join(hub(), folder, "refs", ...revision.split("/")), "utf8").catch(() => "")).trim();
      if (!isCommit(commit)) continue;
      const source = `${endpoint}/${id}@${revision}`;
      for (const name of await filesBelow(join(hub(), folder, "snapshots", commit))) found.set(`${encode(source)}/${encode(name)}`, new HubFile(source, id, revision, name));
    }
  }
  for (const record of records) {
    const [file] = hubPart(PREFIX + record);
    if (file && basename(record) === MANIFEST) found.set(dirname(record), file);
  }
  return found;
}
