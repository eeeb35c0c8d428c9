/** Addresses of scripts for pages that require Trusted Types (`require-trusted-types-for 'script'`). */

interface Policy {
  createScriptURL(url: string): string;
}

/** The policy `jerboa`, which crate/js/cache.js shares. It passes only addresses of the package's own scripts. */
const POLICY = Symbol.for("jerboa.policy");

/** An address that `new Worker` accepts. @throws `TypeError` if the page allows no policy of the name `jerboa`. */
export function scriptUrl(url: string): string {
  const scope = globalThis as unknown as { trustedTypes?: { createPolicy(name: string, rules: Policy): Policy }; [POLICY]?: Policy };
  if (!scope.trustedTypes) return url;
  scope[POLICY] ??= scope.trustedTypes.createPolicy("jerboa", { createScriptURL: (url) => url });
  return scope[POLICY].createScriptURL(url);
}

/** Whether `new Worker` refused an address because it is a plain string. */
export function isUntrusted(thrown: unknown): boolean {
  return thrown instanceof TypeError && "trustedTypes" in globalThis;
}

/**
 * Starts a worker from any origin. Pages may only start same-origin workers, so other origins are imported from a blob
 * script.
 */
export function workerAt(url: string, name: string): Worker {
  const options = { type: "module", name } as const;
  if (new URL(url).origin === location.origin) return new Worker(scriptUrl(url), options);
  const script = URL.createObjectURL(new Blob([`import ${JSON.stringify(url)};`], { type: "text/javascript" }));
  try {
    return new Worker(scriptUrl(script), options);
  } finally {
    // By then the browser has read the script.
    setTimeout(() => URL.revokeObjectURL(script), 60_000);
  }
}
