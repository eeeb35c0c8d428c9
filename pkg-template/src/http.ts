/** Requests and responses of `fetch` handlers. */

import { randomId } from "./random-id.js";

/** Adds the header that OpenAI's clients report as the request's id. */
export function withRequestId(response: Response): Response {
  response.headers.set("x-request-id", `req_${randomId()}`);
  return response;
}

/** The request of a call. Servers such as Nitro and h3 pass objects of their own, which `Request` does not accept. */
export function requestOf(input: RequestInfo | URL, init?: RequestInit): Request {
  try {
    return new Request(input, init);
  } catch (thrown) {
    const { url, method, headers, body, signal } = Object(input) as Partial<Request>;
    if (typeof url !== "string" || !method || !headers) throw thrown;
    // Node requires `duplex` for a stream, and its types do not know it.
    return new Request(url, { method, headers: [...headers], ...(signal ? { signal } : {}), ...(body ? { body, duplex: "half" } : {}), ...init } as RequestInit);
  }
}
