/** Finds the Content-Security-Policy directive behind a failure: browsers tell scripts only that something failed. */

import { JerboaError } from "./errors.js";

/** Origins that the policy has blocked on this thread. */
const blocked = new Set<string>();

(globalThis as Partial<typeof globalThis>).addEventListener?.("securitypolicyviolation", (event) => {
  const { effectiveDirective, blockedURI } = event as unknown as SecurityPolicyViolationEvent;
  if (effectiveDirective === "connect-src") blocked.add(origin(blockedURI));
});

/** Returns the error, or one that names the directive to change. */
export function explained(error: JerboaError): JerboaError {
  const said = `${error.message} ${error.cause instanceof Error ? error.cause.message : ""}`;
  if (error.code === "assets" && /wasm-unsafe-eval|unsafe-eval|Content Security Policy/i.test(said)) {
    const advice = "Add 'wasm-unsafe-eval' to the policy's script-src directive.";
    return new JerboaError("assets", `The engine cannot start: the page's Content-Security-Policy forbids WebAssembly. ${advice}`, { cause: error });
  }
  const at = error.code === "network" || error.code === "assets" ? [...blocked].find((one) => said.includes(one)) : undefined;
  if (at === undefined) return error;
  return new JerboaError(error.code, `${at} cannot be reached: the page's Content-Security-Policy blocks it. Add ${at} to the policy's connect-src directive.`, { cause: error });
}

function origin(address: string): string {
  try {
    return new URL(address).origin;
  } catch {
    return address;
  }
}
