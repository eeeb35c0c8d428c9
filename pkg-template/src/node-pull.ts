/** Downloads a model of the Hub into the cache of `huggingface_hub`, without an engine or a GPU. */

import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { appendFile, copyFile, mkdir, rename, rm, stat, symlink, writeFile } from "node:fs/promises";
import { basename, dirname, join, relative } from "node:path";
import type { LoadProgress } from "./contract.js";
import { aborted, invalidRequest, JerboaError } from "./errors.js";
import { hubFetch } from "./node-fetch.js";
import { localPath } from "./node-platform.js";
import { hubFolder, hubToken } from "./node-store.js";

/** Options of a download. */
export interface PullOptions {
  revision?: string;
  endpoint?: string;
  token?: string;
  signal?: AbortSignal;
  onProgress?: (progress: LoadProgress) => void;
}

/** A downloaded model. */
export interface PulledModel {
  model: string;
  /** Its commit. */
  revision: string;
  files: number;
  bytes: number;
}

interface HubFileInfo {
  name: string;
  size: number;
  sha256: string | undefined;
}

/** A model's name in its parts. */
interface ModelName {
  id: string;
  revision: string;
  /** A .gguf file of the repository. */
  file: string | undefined;
}

/** Files with what a model needs besides weights. */
const SMALL_FILES = /\.(json|jinja|txt|model)$/;
/** Weights of the model, and of dense layers of sentence-transformers. */
const WEIGHTS = /^(model(-\d+-of-\d+)?|\d+_\w+\/model|pytorch_model(-\d+-of-\d+)?)\.safetensors$/;
/** Bytes between two reports of progress. */
const REPORT_BYTES = 1 << 20;

function parsed(name: string, revision = "main"): ModelName {
  const [, id, at, file] = /^([\w.-]+\/[\w.-]+)(?:@([^/]+(?:\/[^/]+)*?))?(?:\/(.+\.gguf))?$/i.exec(name) ?? [];
  if (!id) throw invalidRequest(`pull: '${name}' is not a model of the Hub. Use 'org/name' or 'org/name/file.gguf'.`);
  return { id, revision: at ?? revision, file };
}

/** The address of the Hub, without a slash at its end. */
function endpointOf(given: string | undefined): string {
  const endpoint = given ?? (process.env.HF_ENDPOINT || "https://huggingface.co");
  if (!/^https?:$/.test(URL.canParse(endpoint) ? new URL(endpoint).protocol : "")) throw invalidRequest(`pull: '${given === undefined ? "HF_ENDPOINT" : "--endpoint"}' must be a URL such as https://huggingface.co, not '${endpoint}'.`);
  return endpoint.replace(/\/+$/, "");
}

/** The files to download: the named GGUF file with its parts, or the tokenizer, configuration and safetensors. */
function chosen({ id, file }: ModelName, files: HubFileInfo[]): HubFileInfo[] {
  const ggufs = files.filter(({ name }) => name.toLowerCase().endsWith(".gguf") && !/mmproj/i.test(name));
  if (file) {
    const stem = file.replace(/-\d{5}-of-\d{5}\.gguf$/, "");
    const parts = stem === file ? [] : ggufs.filter(({ name }) => name.startsWith(`${stem}-`));
    const found = parts.length > 0 ? parts : ggufs.filter(({ name }) => name === file);
    if (found.length === 0) throw new JerboaError("not_found", `${id} has no file ${file}. It has: ${ggufs.map(({ name }) => name).join(", ") || "no GGUF files"}.`);
    return found;
  }
  const all = files.filter(({ name }) => name.endsWith(".safetensors") && !name.includes("/"));
  const named = files.filter(({ name }) => WEIGHTS.test(name));
  const weights = named.length > 0 ? named : all;
  if (weights.length > 0) return [...files.filter(({ name }) => SMALL_FILES.test(name)), ...weights];
  if (ggufs.length === 1) return ggufs;
  if (ggufs.length === 0) throw new JerboaError("missing_file", `${id} has neither safetensors nor GGUF files. Choose a repository that has one of them.`);
  throw invalidRequest(`pull: ${id} has several GGUF files. Name one of them: ${ggufs.map(({ name }) => `${id}/${name}`).join(", ")}.`);
}

/** Downloads a model's files; those that are complete are kept, an interrupted one is resumed. */
export async function pullModel(name: string, options: PullOptions): Promise<PulledModel> {
  const { signal, onProgress } = options;
  const endpoint = endpointOf(options.endpoint);
  const local = await localPath(name);
  if (local !== undefined) {
    const found = await stat(local).catch(() => undefined);
    throw invalidRequest(`pull: '${name}' is not a model of the Hub but a local path. ${found ? "It needs no download: pass the path to the other commands" : "Use 'org/name' or 'org/name/file.gguf'"}.`);
  }
  const model = parsed(name, options.revision);
  const token = options.token ?? (await hubToken());
  let started = false;
  const request = async (path: string, headers: Record<string, string> = {}): Promise<Response> => {
    if (signal?.aborted) throw aborted("The download");
    let response: Response;
    try {
      response = await hubFetch(`${endpoint}/${path}`, { headers: { ...headers, ...(token ? { authorization: `Bearer ${token}` } : {}) }, ...(signal ? { signal } : {}) });
    } catch (thrown) {
      if (signal?.aborted) throw aborted("The download");
      throw interrupted(model.id, endpoint, thrown as Error, started);
    }
    if (response.ok) return response;
    throw refused(model, endpoint, response.status, token !== undefined);
  };
  const listing = await (await request(`api/models/${model.id}/revision/${encodeURIComponent(model.revision)}?blobs=true`)).json().catch(() => undefined) as { siblings?: { rfilename: string; size?: number; lfs?: { sha256: string; size: number } }[] } | undefined;
  if (!Array.isArray(listing?.siblings)) throw new JerboaError("network", `${endpoint} sent no list of files for ${model.id}, so it is not a Hugging Face Hub. Check --endpoint or HF_ENDPOINT.`);
  started = true;
  const files = chosen(model, listing.siblings.map(({ rfilename, size, lfs }) => ({ name: rfilename, size: lfs?.size ?? size ?? 0, sha256: lfs?.sha256 })));
  const download = new Download(hubFolder(model.id), endpoint, files, request, onProgress);
  for (const file of files) await download.fetch(file, `${model.id}/resolve/${encodeURIComponent(model.revision)}/${file.name.split("/").map(encodeURIComponent).join("/")}`);
  if (!download.commit) throw new JerboaError("network", `${endpoint} sent no commit for ${model.id} (header x-repo-commit), so it is not a Hugging Face Hub. Check --endpoint or HF_ENDPOINT.`);
  const ref = join(hubFolder(model.id), "refs", ...model.revision.split("/"));
  await mkdir(dirname(ref), { recursive: true });
  await writeFile(ref, download.commit);
  return { model: name, revision: download.commit, files: files.length, bytes: download.loaded };
}

/** The error of a connection that failed; `resumes`: whether another attempt continues it. */
function interrupted(what: string, endpoint: string, thrown: Error, resumes: boolean): JerboaError {
  const { cause } = thrown as { cause?: { code?: string; message?: string } };
  const reason = cause?.message || cause?.code;
  const advice = resumes ? "Run the command again to resume." : "Check the connection, and --endpoint or HF_ENDPOINT if one is set.";
  return new JerboaError("network", `downloading ${what} from ${endpoint} failed: ${thrown.message}${reason ? ` (${reason})` : ""}. ${advice}`, { cause: thrown });
}

/** The error of an answer of the Hub without the requested file. */
function refused({ id, revision }: ModelName, endpoint: string, status: number, hasToken: boolean): JerboaError {
  if (status === 401 || status === 403) {
    const problem = hasToken ? `refuses the access token (HTTP ${status}). Accept its terms on its page, and check that the token has read access.` : `does not exist or needs an access token (HTTP ${status}). Check the name, accept its terms on its page, then pass --token or set HF_TOKEN.`;
    return new JerboaError("gated", `${id} ${problem}`);
  }
  if (status === 404) return new JerboaError("not_found", `${id} was not found at revision '${revision}' on ${endpoint}. Check the name${revision === "main" ? "" : ", and that it has this revision"}.`);
  const isTemporary = status === 408 || status === 429 || status >= 500;
  return new JerboaError("network", `downloading ${id} from ${endpoint} failed: HTTP ${status}. ${isTemporary ? "Run the command again later to resume." : "Check --endpoint or HF_ENDPOINT if one is set."}`);
}

class Download {
  /** The revision's commit, once a file was requested. */
  commit = "";
  loaded = 0;
  readonly #total: number;
  readonly #started = Date.now();
  #received = 0;
  #reported = 0;

  constructor(readonly repo: string, readonly endpoint: string, files: HubFileInfo[], readonly request: (path: string, headers?: Record<string, string>) => Promise<Response>, readonly onProgress: PullOptions["onProgress"]) {
    this.#total = files.reduce((sum, { size }) => sum + size, 0);
  }

  /** Downloads a file into its blob, and links it from the commit's snapshot. */
  async fetch(file: HubFileInfo, path: string): Promise<void> {
    const response = await this.request(path);
    const etag = response.headers.get("etag")?.replace(/^W\//, "").replaceAll('"', "");
    this.commit ||= response.headers.get("x-repo-commit") ?? "";
    const hash = file.sha256 ?? etag ?? "";
    if (!/^[0-9a-f]{40,64}$/.test(hash)) throw new JerboaError("malformed", `${file.name} was sent without a hash in its ETag header, which a Hugging Face Hub sends. Check --endpoint or HF_ENDPOINT.`);
    const blob = join(this.repo, "blobs", hash);
    if (await stat(blob).then(() => true, () => false)) {
      await response.body?.cancel();
      this.loaded += file.size;
    } else await this.#complete(file, path, response, blob);
    const link = join(this.repo, "snapshots", this.commit, ...file.name.split("/"));
    await mkdir(dirname(link), { recursive: true });
    await rm(link, { force: true });
    // Windows allows links in its developer mode only; huggingface_hub copies there, too.
    await symlink(relative(dirname(link), blob), link).catch(() => copyFile(blob, link));
  }

  async #complete(file: HubFileInfo, path: string, response: Response, blob: string): Promise<void> {
    // The name of huggingface_hub's own unfinished files.
    const unfinished = `${blob}.incomplete`;
    await mkdir(dirname(blob), { recursive: true });
    const have = await stat(unfinished).then(({ size }) => size, () => 0);
    let body = response;
    if (have > 0) {
      await response.body?.cancel();
      body = await this.request(path, { range: `bytes=${have}-` });
    }
    if (body.status === 206) this.loaded += have;
    else await writeFile(unfinished, "");
    const reader = body.body!.getReader();
    const read = (): ReturnType<typeof reader.read> => reader.read().catch((thrown: Error) => {
      throw thrown.name === "AbortError" ? thrown : interrupted(file.name, this.endpoint, thrown, true);
    });
    for (let step = await read(); !step.done; step = await read()) {
      await appendFile(unfinished, step.value);
      this.loaded += step.value.length;
      this.#received += step.value.length;
      this.#report(file.name);
    }
    if (file.sha256 && (await sha256(unfinished)) !== file.sha256) {
      await rm(unfinished, { force: true });
      throw new JerboaError("malformed", `${basename(file.name)} was downloaded with another SHA-256 than the Hub lists. Run the command again to download it anew.`);
    }
    await rename(unfinished, blob);
  }

  #report(file: string): void {
    if (this.#received - this.#reported < REPORT_BYTES) return;
    this.#reported = this.#received;
    const bytesPerSecond = this.#received / Math.max(0.001, (Date.now() - this.#started) / 1000);
    const total = Math.max(this.#total, this.loaded);
    this.onProgress?.({ phase: "weights", file, loaded: this.loaded, total, progress: this.loaded / total, bytesPerSecond, secondsLeft: (total - this.loaded) / bytesPerSecond, fromCache: false });
  }
}

async function sha256(path: string): Promise<string> {
  const hash = createHash("sha256");
  for await (const chunk of createReadStream(path)) hash.update(chunk);
  return hash.digest("hex");
}
