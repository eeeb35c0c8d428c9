/** Fetches URLs that clients of a server name: only from public addresses, behind redirects too. */

import { lookup } from "node:dns";
import { type IncomingMessage, type Lookup, request as requestHttp } from "node:http";
import { request as requestHttps } from "node:https";
import { BlockList, isIP } from "node:net";
import { JerboaError } from "./errors.js";

/** Redirects that are followed. */
const MAX_REDIRECTS = 10;
/** Statuses whose responses have no body. */
const NO_BODY: ReadonlySet<number> = new Set([204, 205, 304]);

/** Special ranges of IPv4 (RFC 6890), multicast included. */
const PRIVATE_IPV4 = [
  ["0.0.0.0", 8], ["10.0.0.0", 8], ["100.64.0.0", 10], ["127.0.0.0", 8], ["169.254.0.0", 16], ["172.16.0.0", 12], ["192.0.0.0", 24], ["192.0.2.0", 24],
  ["192.168.0.0", 16], ["198.18.0.0", 15], ["198.51.100.0", 24], ["203.0.113.0", 24], ["224.0.0.0", 3],
] as const;
/** The global unicast range of IPv6, and ranges in it that are special or contain IPv4 addresses. */
const PUBLIC_IPV6 = ["2000::", 3] as const;
const SPECIAL_IPV6 = [["2001::", 23], ["2001:db8::", 32], ["2002::", 16], ["3fff::", 20]] as const;

const refusedAddresses = new BlockList();
for (const [net, prefix] of PRIVATE_IPV4) refusedAddresses.addSubnet(net, prefix, "ipv4");
for (const [net, prefix] of SPECIAL_IPV6) refusedAddresses.addSubnet(net, prefix, "ipv6");
const globalIpv6 = new BlockList();
globalIpv6.addSubnet(...PUBLIC_IPV6, "ipv6");

/** Whether an IP address is of the public internet. */
export function isPublicAddress(address: string): boolean {
  const family = isIP(address) === 6 ? "ipv6" : "ipv4";
  return isIP(address) !== 0 && !refusedAddresses.check(address, family) && (family === "ipv4" || globalIpv6.check(address, family));
}

/** The error of an address that is not public. */
const refusal = (url: URL): JerboaError =>
  new JerboaError("request", `The URL ${url.origin} of the request leads to a private or local address, which this server does not fetch. Send the image as a data: URL, or start the server with --allow-private-urls.`);

/**
 * Creates a `fetch` that refuses private and local addresses with a {@link JerboaError} of code `request`. Each name is
 * resolved once, so that the address that was checked is the one that is connected to.
 */
export function createPublicFetch(isAllowed: (address: string) => boolean = isPublicAddress): typeof fetch {
  return async (input, init) => {
    let url = new URL(input instanceof Request ? input.url : input);
    if (url.protocol === "blob:") return fetch(input, init);
    for (let count = 0; count <= MAX_REDIRECTS; count++) {
      const answer = await get(url, isAllowed, init?.signal ?? undefined);
      const { statusCode: status = 0, headers } = answer;
      if (status < 300 || status >= 400 || !headers.location) return responseOf(answer, status);
      answer.destroy();
      url = new URL(headers.location, url);
    }
    throw new TypeError(`${url.host} redirects in a loop`);
  };
}

function get(url: URL, isAllowed: (address: string) => boolean, signal: AbortSignal | undefined): Promise<IncomingMessage> {
  if (!/^https?:$/.test(url.protocol)) throw new TypeError(`a redirect leads to a ${url.protocol} URL`);
  // Addresses are not looked up.
  const host = url.hostname.replace(/^\[|\]$/g, "");
  if (isIP(host) !== 0 && !isAllowed(host)) throw refusal(url);
  const checkedLookup: Lookup = (name, options, done) =>
    lookup(name, { ...options, all: true }, (error, addresses) => {
      if (error) return done(error);
      if (addresses.length === 0 || !addresses.every(({ address }) => isAllowed(address))) return done(refusal(url));
      if (options.all) done(null, addresses);
      else done(null, addresses[0]!.address, addresses[0]!.family);
    });
  const send = url.protocol === "https:" ? requestHttps : requestHttp;
  return new Promise((resolve, reject) => {
    // Connections of the default agent may be open to addresses that were not checked.
    const sent = send(url, { agent: false, lookup: checkedLookup, headers: { accept: "*/*", "accept-encoding": "identity", "user-agent": "jerboa" }, ...(signal ? { signal } : {}) }, resolve);
    sent.on("error", reject);
    sent.end();
  });
}

function responseOf(answer: IncomingMessage, status: number): Response {
  if (NO_BODY.has(status)) {
    answer.destroy();
    return new Response(null, { status });
  }
  const type = answer.headers["content-type"];
  const bytes = answer[Symbol.asyncIterator]();
  const body = new ReadableStream<Uint8Array>({
    async pull(stream) {
      const { done, value } = await bytes.next();
      if (done) stream.close();
      else stream.enqueue(value);
    },
    cancel: () => answer.destroy(),
  });
  return new Response(body, { status, headers: type ? { "content-type": type } : {} });
}
