/**
 * Refuses an old Node when the package is imported. No other module may import by name what an old Node lacks: that
 * ends in a SyntaxError before this one runs.
 */

/** The `engines` of package.json, as in cli.ts, which may import nothing. */
const MIN_MAJOR = 20;
const MIN_MINOR = 12;

const [major = 0, minor = 0] = process.versions.node.split(".").map(Number);
if (major < MIN_MAJOR || (major === MIN_MAJOR && minor < MIN_MINOR)) {
  throw new Error(`jerboa: Node ${process.versions.node} is too old. Install Node ${MIN_MAJOR}.${MIN_MINOR} or newer.`);
}

export {};
