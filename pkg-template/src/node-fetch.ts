/** Requests of the engine in Node: files of this machine, and the Hub with the properties that it states before a redirect. */

import * as fs from "node:fs";
import { fileURLToPath } from "node:url";

/** Redirects that are followed. */
const MAX_REDIRECTS = 10;
/** Headers of the Hub that say what a file is; the server that it redirects to does not know them. */
const HUB_HEADERS = [["x-linked-etag", "etag"], ["x-repo-commit", "x-repo-commit"]] as const;

/** The content of a `file:` URL. */
export async function fetchFile(address: string): Promise<Response> {
  try {
    return new Response(await fs.openAsBlob(fileURLToPath(address)));
  } catch (thrown) {
    throw new TypeError(`${address} cannot be read: ${(thrown as Error).message}`);
  }
}

/**
 * Requests a file and follows redirects. Large files of the Hub are served elsewhere, under another ETag; the result has
 * that of the Hub, which is the file's SHA-256, and its commit. The token goes to the first host only.
 */
export async function hubFetch(input: RequestInfo | URL, init?: RequestInit): Promise<Response> {
  let url = new URL(input instanceof Request ? input.url : input);
  if (!url.pathname.includes("/resolve/")) return fetch(input, init);
  const first = url.origin;
  const stated = new Map<string, string>();
  for (let count = 0; count <= MAX_REDIRECTS; count++) {
    const headers = new Headers(init?.headers);
    if (url.origin !== first) headers.delete("authorization");
    const response = await fetch(url, { ...init, headers, redirect: "manual" });
    for (const [from, to] of HUB_HEADERS) {
      const value = response.headers.get(from);
      if (value && !stated.has(to)) stated.set(to, value);
    }
    const next = response.headers.get("location");
    if (response.status < 300 || response.status >= 400 || !next) return stated.size === 0 ? response : withHeaders(response, stated);
    await response.body?.cancel();
    url = new URL(next, url);
    // Other hosts than Node open further kinds, such as files.
    if (!/^https?:$/.test(url.protocol)) throw new TypeError(`${first} redirects to a ${url.protocol} URL`);
  }
  throw new TypeError(`${first} redirects in a loop`);
}

function withHeaders(response: Response, stated: Map<string, string>): Response {
  const headers = new Headers(response.headers);
  for (const [name, value] of stated) headers.set(name, value);
  const { status, statusText } = response;
  return new Response(response.body, { status, statusText, headers });
}
