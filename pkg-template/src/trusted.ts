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
