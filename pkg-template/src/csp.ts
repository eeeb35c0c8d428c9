/** Finds the Content-Security-Policy directive behind a failure: browsers tell scripts only that something failed. */

import { JerboaError } from "./errors.js";

type Directive = "connect-src" | "media-src" | "worker-src";

/** What the policy has blocked on this thread: origins, or the schemes of `blob:` and `data:` URLs. */
const blocked: Record<Directive, Set<string>> = { "connect-src": new Set(), "media-src": new Set(), "worker-src": new Set() };

/** Origins of WebAssembly files that the policy has blocked: their errors name no address. */
const blockedWasm = new Set<string>();

(globalThis as Partial<typeof globalThis>).addEventListener?.("securitypolicyviolation", (event) => noteViolation(event as SecurityPolicyViolationEvent));

/** Remembers a violation of the policy. */
export function noteViolation({ effectiveDirective, blockedURI }: Pick<SecurityPolicyViolationEvent, "effectiveDirective" | "blockedURI">): void {
  if (!Object.hasOwn(blocked, effectiveDirective)) return;
  blocked[effectiveDirective as Directive].add(sourceOf(blockedURI));
  if (effectiveDirective === "connect-src" && /\.wasm(\?|$)/.test(blockedURI)) blockedWasm.add(sourceOf(blockedURI));
}

/** Milliseconds until a violation is reported, which happens after its fetch has failed. */
const VIOLATION_TIMEOUT_MS = 50;

/** The error of a failed call, or one that names the directive to change. */
export async function explained(thrown: unknown): Promise<JerboaError> {
  const error = JerboaError.from(thrown);
  if (error.code === "assets") await new Promise((resolve) => setTimeout(resolve, VIOLATION_TIMEOUT_MS));
  return withCspAdvice(error);
}

/** Returns the error, or one that names the directive to change. */
export function withCspAdvice(error: JerboaError): JerboaError {
  const said = `${error.message} ${error.cause instanceof Error ? error.cause.message : ""}`;
  if (error.code === "assets" && /wasm-unsafe-eval|unsafe-eval|Content Security Policy/i.test(said)) {
    const advice = "Add 'wasm-unsafe-eval' to the policy's script-src directive.";
    return new JerboaError("assets", `The engine cannot start: the page's Content-Security-Policy forbids WebAssembly. ${advice}`, { cause: error });
  }
  const isAsset = error.code === "assets";
  const named = error.code === "network" || isAsset ? [...blocked["connect-src"]].find((one) => said.includes(one)) : undefined;
  const [source] = named ? [named] : isAsset ? blockedWasm : [];
  return source === undefined ? error : new JerboaError(error.code, cannotReach(source, "connect-src"), { cause: error });
}

/** What the policy blocks, and how to allow it, if a directive has blocked this URL. */
export function cspAdvice(directive: Directive, url: string): string | undefined {
  const source = sourceOf(url);
  return blocked[directive].has(source) ? cannotReach(source, directive) : undefined;
}

/** The same for a worker's script. One of another origin starts from a blob: script, and the policy must allow both. */
export function workerCspAdvice(url: string): string | undefined {
  const source = [sourceOf(url), "blob:"].find((one) => blocked["worker-src"].has(one));
  return source && cannotReach(source, "worker-src", workerSources(url));
}

/** What `worker-src` must list for a worker's script. */
export function workerSources(url: string): string {
  const source = sourceOf(url);
  return source === globalThis.location?.origin ? "'self'" : `blob: and ${source}`;
}

function cannotReach(source: string, directive: Directive, allowed = source === globalThis.location?.origin ? "'self'" : source): string {
  return `${source} cannot be reached: the page's Content-Security-Policy blocks it. Add ${allowed} to the policy's ${directive} directive.`;
}

/** What a directive lists for a URL. Violations report only the scheme of `blob:` and `data:` URLs, without the colon. */
function sourceOf(address: string): string {
  const [, scheme] = /^(blob|data)(?::|$)/.exec(address) ?? [];
  if (scheme) return `${scheme}:`;
  try {
    return new URL(address, globalThis.location?.href).origin;
  } catch {
    return address;
  }
}
