/** Where the files of a model or of an adapter come from. */

import { describe } from "./check.js";
import type { EngineLoadOptions } from "./contract.js";
import { invalidRequest } from "./errors.js";
import { platform } from "./platform.js";

/** A selected file with its name in the repository. */
export interface NamedFile {
  name: string;
  file: File;
}
/**
 * What {@link loadModel} accepts: a repository (`org/name`) or its page on the Hub, also of a subfolder, a folder's URL,
 * one .gguf file of either
 * (`org/name/model-Q4_K_M.gguf`, `https://host/model.gguf`), or a checkpoint's files from an `<input type="file">` or a
 * drop; a .gguf file needs no list.
 */
export type ModelSource = string | URL | File | Iterable<File | NamedFile> | ArrayLike<File>;

/** The engine's form of a source; `where` is the call that got it. */
export function sourceOf(source: ModelSource, where = "loadModel"): EngineLoadOptions["model"] {
  if (typeof source === "string" && source.trim()) return canonicalAddress(source);
  if (source instanceof URL) return canonicalAddress(source.href);
  const isList = typeof source === "object" && source !== null && (source instanceof File || Symbol.iterator in source || "length" in source);
  if (!isList) {
    throw invalidRequest(`${where}: expected 'org/name', the URL of a folder or a .gguf file, or files, not ${source === "" ? "an empty string" : describe(source)}.`);
  }
  const files = Array.from(source instanceof File ? [source] : (source as Iterable<File | NamedFile>), (entry, index) => toNamedFile(where, entry, index));
  if (files.length === 0) throw invalidRequest(`${where}: the list of files is empty. Pass the configuration and the weights, or 'org/name'.`);
  return files;
}

/**
 * One spelling of an address, which names it in the cache: in a page, paths become URLs; URLs lose trailing slashes.
 * Repository names and what the engine refuses stay as they are.
 */
export function canonicalAddress(address: string): string {
  const text = address.trim();
  const isPath = /^(\/|\.\.?\/)/.test(text);
  if (/^\/[/\\]|[\\?#\p{Cc}]/u.test(text) || !(isPath || /^https?:\/\/[^/]/i.test(text))) return text;
  // Other hosts read paths from the disk.
  if (isPath && platform()) return text;
  try {
    const url = new URL(text, globalThis.document?.baseURI ?? globalThis.location?.href);
    return url.username || url.password ? text : url.href.replace(/\/+$/, "");
  } catch {
    return text;
  }
}

/** Whether an address is a folder's or a file's URL, not a repository of the Hub. */
export function isFolder(address: string): boolean {
  return address.includes("://") && !/^https?:\/\/(www\.)?(huggingface\.co|hf\.co)\//.test(address);
}

/** An address without the user name and password that it may have, for messages. */
export function withoutCredentials(address: string | URL): string {
  return String(address).replace(/\/\/[^/?#]*@/, "//");
}

/** A selected file with its path inside the selected folder. */
function toNamedFile(where: string, entry: File | NamedFile, index: number): NamedFile {
  if (!(entry instanceof File)) {
    if (typeof entry?.name === "string" && entry.file instanceof File) return { name: entry.name, file: entry.file };
    throw invalidRequest(`${where}: a list of files must contain File objects or { name, file }; item ${index} is ${describe(entry)}.`);
  }
  const path = entry.webkitRelativePath;
  return { name: path ? path.slice(path.indexOf("/") + 1) : entry.name, file: entry };
}
