/** Records the kernels that a page's engine compiles, in the file that the test runner names. */

import { appendFileSync } from "node:fs";

const FILE = process.env.JERBOA_KERNELS;
/** Whether kernels are recorded. */
export const asked = Boolean(FILE);
/** The path to which pages report kernels. */
export const REPORT_PATH = "/_kernels";

/**
 * Code before a script that creates pipelines: reports each name and waits for the answer, so that none is missed. It is on the script's first line: lines retain
 * their numbers.
 */
export const REPORT_SCRIPT =
  "{const made=globalThis.GPUDevice?.prototype,make=made?.createComputePipelineAsync;if(make&&!globalThis.reportedKernels){const reported=globalThis.reportedKernels=new Map();" +
  "made.createComputePipelineAsync=async function(what){const name=what.label;if(name&&!reported.has(name))" +
  `reported.set(name,fetch(location.origin+"${REPORT_PATH}",{method:"POST",body:name}).catch(()=>{}));await reported.get(name);return make.call(this,what)}}}`;

const recorded = new Set();

/** Records a kernel. */
export function recordKernel(name) {
  if (asked && !recorded.has(name)) appendFileSync(FILE, `${name}\n`);
  recorded.add(name);
}

/** Records that the engine itself is under test: without reports from a page it may use any kernel. */
export function expectKernels() {
  process.once("exit", () => recorded.size === 0 && recordKernel("any"));
}
