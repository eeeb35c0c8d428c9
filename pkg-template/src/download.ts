/** Downloads small files that the page needs itself. The engine downloads models (crate/src/hub). */

import { platform } from "./platform.js";
import { FETCH_STALL_MS } from "./waits.js";

/** Attempts in all, if the connection breaks or stalls. */
const ATTEMPTS = 3;
/** Pause before the second attempt; it doubles. */
const PAUSE_MS = 500;

/** A failure that another attempt may not have. */
class Interrupted extends Error {}

/** An answer of the server that has no content. */
export class StatusError extends Error {
  constructor(readonly status: number) {
    super(`the server answered ${status}`);
  }
}

/** The `fetch` of the host. */
const hostFetch: typeof fetch = (input, init) => (platform()?.fetch ?? fetch)(input, init);
let mediaFetch = hostFetch;

/** Sets the `fetch` of images that messages name by URL, for a server whose clients may not reach every address. */
export function useMediaFetch(given: typeof fetch): void {
  mediaFetch = given;
}

/** The image at an address of a message. */
export const downloadMedia = (address: URL, signal?: AbortSignal): Promise<Blob> => download(address, signal, mediaFetch);

/**
 * The content at an address. A connection that breaks, or sends nothing for {@link FETCH_STALL_MS}, is opened again.
 * @throws An `Error` that names the host, or the signal's reason.
 */
export async function download(address: string | URL, signal?: AbortSignal, send = hostFetch): Promise<Blob> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await attemptDownload(address, signal, send);
    } catch (thrown) {
      if (signal?.aborted || !(thrown instanceof Interrupted) || attempt === ATTEMPTS) throw thrown;
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS * 2 ** (attempt - 1)));
    }
  }
}

async function attemptDownload(address: string | URL, signal: AbortSignal | undefined, send: typeof fetch): Promise<Blob> {
  const stall = new AbortController();
  const end = (): void => stall.abort(signal?.reason);
  if (signal?.aborted) end();
  signal?.addEventListener("abort", end, { once: true });
  const { host } = new URL(address, globalThis.document?.baseURI ?? globalThis.location?.href);
  try {
    const response = await moving(host, stall, send(address, { signal: stall.signal }));
    if (!response.ok) throw new StatusError(response.status);
    const type = response.headers.get("content-type") ?? "";
    const reader = response.body?.getReader();
    if (!reader) return new Blob([], { type });
    const parts: Uint8Array<ArrayBuffer>[] = [];
    for (;;) {
      const { done, value } = await moving(host, stall, reader.read()).catch((thrown) => {
        throw signal?.aborted || thrown instanceof Interrupted ? thrown : new Interrupted(`the connection to ${host} broke: ${(thrown as Error).message}`);
      });
      if (done) return new Blob(parts, { type });
      parts.push(value as Uint8Array<ArrayBuffer>);
    }
  } finally {
    signal?.removeEventListener("abort", end);
    stall.abort();
  }
}

/** The next answer of a server, which ends the request if it does not come. */
function moving<T>(host: string, request: AbortController, answer: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      reject(new Interrupted(`${host} sent nothing for ${FETCH_STALL_MS / 1000} seconds`));
      request.abort();
    }, FETCH_STALL_MS);
    // An abort that the server's side ignores ends the wait all the same.
    const aborted = (): void => reject(request.signal.reason);
    request.signal.addEventListener("abort", aborted, { once: true });
    answer.then(resolve, reject).finally(() => {
      clearTimeout(timer);
      request.signal.removeEventListener("abort", aborted);
    });
  });
}
