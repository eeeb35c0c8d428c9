#!/usr/bin/env node
/** Starts the command line, or says which Node it needs: older ones cannot parse or link its modules. This one runs in Node 12. */

/** The `engines` of package.json. */
const MIN_MAJOR = 20;
const MIN_MINOR = 12;

const [major = 0, minor = 0] = process.versions.node.split(".").map(Number);
if (major > MIN_MAJOR || (major === MIN_MAJOR && minor >= MIN_MINOR)) void import("./cli-run.js");
else {
  console.error(`jerboa: Node ${process.versions.node} is too old. Install Node ${MIN_MAJOR}.${MIN_MINOR} or newer.`);
  process.exitCode = 1;
}

export {};
