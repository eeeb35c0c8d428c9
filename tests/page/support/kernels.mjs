/** Which kernels a page's engine has compiled, written to the file that the test runner names. Knows their labels; not the page. */

import { appendFileSync } from "node:fs";

const FILE = process.env.JERBOA_KERNELS;
/** Whether somebody wants to know. */
export const asked = Boolean(FILE);
/** Where pages say it. */
export const EAR = "/_kernels";

/**
 * Before a script that makes pipelines: says each one's name and waits until it is heard, so that none is made in secret. It stands on the script's first line: lines keep
 * their numbers.
 */
export const TELL =
  "{const made=globalThis.GPUDevice?.prototype,make=made?.createComputePipelineAsync;if(make&&!globalThis.toldKernels){const told=globalThis.toldKernels=new Map();" +
  "made.createComputePipelineAsync=async function(what){const name=what.label;if(name&&!told.has(name))" +
  `told.set(name,fetch(location.origin+"${EAR}",{method:"POST",body:name}).catch(()=>{}));await told.get(name);return make.call(this,what)}}}`;

const heard = new Set();

/** A page compiles a kernel. */
export function hear(name) {
  if (asked && !heard.has(name)) appendFileSync(FILE, `${name}\n`);
  heard.add(name);
}

/** The engine itself is under test: where no page tells of a kernel, it may be any. */
export function expectKernels() {
  process.once("exit", () => heard.size === 0 && hear("any"));
}
