/** Records the kernels that a page's engine compiles, in the file that the test runner names. */

import { appendFileSync } from "node:fs";

const FILE = process.env.JERBOA_KERNELS;
/** Whether kernels are recorded. */
export const asked = Boolean(FILE);
/** The path to which pages report kernels. */
export const EAR = "/_kernels";

/**
 * Code before a script that creates pipelines: reports each name and waits for the answer, so that none is missed. It is on the script's first line: lines retain
 * their numbers.
 */
export const TELL =
  "{const made=globalThis.GPUDevice?.prototype,make=made?.createComputePipelineAsync;if(make&&!globalThis.toldKernels){const told=globalThis.toldKernels=new Map();" +
  "made.createComputePipelineAsync=async function(what){const name=what.label;if(name&&!told.has(name))" +
  `told.set(name,fetch(location.origin+"${EAR}",{method:"POST",body:name}).catch(()=>{}));await told.get(name);return make.call(this,what)}}}`;

const heard = new Set();

/** Records a kernel. */
export function hear(name) {
  if (asked && !heard.has(name)) appendFileSync(FILE, `${name}\n`);
  heard.add(name);
}

/** Records that the engine itself is under test: without reports from a page it may use any kernel. */
export function expectKernels() {
  process.once("exit", () => heard.size === 0 && hear("any"));
}
