/** The command line `jerboa`. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 141 standard output closed. */

import process, { argv, exit, stderr, stdout } from "node:process";
import { parseArgs } from "node:util";
import { COMMANDS, type Command, type CommandOption, LOAD_FLAGS, optionName } from "./cli-commands.js";
import { completionScript } from "./cli-completion.js";
import { note, print, printJson } from "./cli-output.js";
import { JerboaError, worded } from "./errors.js";
import { endThreads } from "./node-platform.js";

/** A command line that cannot be run. */
class UsageError extends Error {}

const COMMON: CommandOption[] = [
  { name: "json", kind: "boolean", about: "print results as JSON" },
  { name: "help", short: "h", kind: "boolean", about: "print this help" },
];

const optionsOf = (command: Command): CommandOption[] => [...command.options, ...(command.loads ? LOAD_FLAGS : []), ...COMMON];

function usage(): string {
  const width = Math.max(...COMMANDS.map(({ name, args }) => `${name} ${args}`.length));
  const lines = COMMANDS.map(({ name, args, about }) => `  ${`${name} ${args}`.padEnd(width)}  ${about}`);
  return ["jerboa COMMAND [OPTION..]", "", ...lines, `  ${"completion SHELL".padEnd(width)}  print a completion script for bash, zsh or fish`, "", "MODEL is 'org/name' of the Hugging Face Hub, a folder, or a .gguf file of either.", "'jerboa COMMAND --help' lists the options of a command."].join("\n");
}

function help(command: Command): string {
  const flags = optionsOf(command).map(({ name, short, kind, about }) => [`${short ? `-${short}, ` : ""}--${name}${kind === "boolean" ? "" : ` ${kind.toUpperCase()}`}`, about] as const);
  const width = Math.max(...flags.map(([flag]) => flag.length));
  return [`jerboa ${command.name} ${command.args}`, "", command.about, "", ...flags.map(([flag, about]) => `  ${flag.padEnd(width)}  ${about}`)].join("\n");
}

/** The arguments with negative numbers joined to their options: `parseArgs` takes what begins with `-` for an option. */
function withSignedNumbers(args: string[], options: CommandOption[]): string[] {
  const numeric = new Map(options.filter(({ kind }) => kind === "number").flatMap(({ name, short }) => [[`--${name}`, name], ...(short ? [[`-${short}`, name]] : [])] as [string, string][]));
  const joined: string[] = [];
  for (const [at, arg] of args.entries()) {
    const before = args[at - 1] ?? "";
    if (joined.includes("--") || !numeric.has(before) || !/^-\.?\d/.test(arg)) joined.push(arg);
    else joined[joined.length - 1] = `--${numeric.get(before)}=${arg}`;
  }
  return joined;
}

/** The values of a command's options, by name. */
function parse(command: Command, args: string[]): { values: Record<string, unknown>; positionals: string[] } {
  const options = optionsOf(command);
  let parsed;
  try {
    const config = Object.fromEntries(options.map(({ name, short, kind, multiple }) => [name, { type: kind === "boolean" ? "boolean" : "string", ...(short ? { short } : {}), ...(multiple ? { multiple } : {}) } as const]));
    parsed = parseArgs({ args: withSignedNumbers(args, options), options: config, allowPositionals: true });
  } catch (thrown) {
    const { message } = thrown as Error;
    const [problem] = message.split(/\.\s/);
    throw new UsageError(message.includes("after '--'") ? `${problem}. Put text that begins with '-' after '--', as in: jerboa ${command.name} ${command.args.split(" ")[0]} -- '- text'` : problem!);
  }
  const values: Record<string, unknown> = { ...parsed.values };
  for (const { name, kind, valid } of options) {
    const value = values[name];
    if (kind !== "number" || value === undefined) continue;
    if (typeof value !== "string" || value.trim() === "" || !Number.isFinite(Number(value))) throw new UsageError(`'--${name}' needs a number, not '${String(value)}'`);
    if (valid && !valid.accepts(Number(value))) throw new UsageError(`'--${name}' must be ${valid.expected}, not ${value}`);
    values[name] = Number(value);
  }
  return { values, positionals: parsed.positionals };
}

/** Ends the process as a signal does that nothing handles: at once, without the GPU driver's destructors. */
function endBy(signal: "SIGINT" | "SIGTERM"): void {
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
}

async function run(args: string[]): Promise<number> {
  const [name, ...rest] = args;
  if (name === undefined || name === "help" || name === "--help" || name === "-h") {
    const topic = COMMANDS.find((each) => each.name === rest[0]);
    if (rest[0] !== undefined && !topic && !/^(help|version|completion)$/.test(rest[0])) throw new UsageError(`unknown command '${rest[0]}'`);
    print(topic ? help(topic) : usage());
    return name === undefined ? 2 : 0;
  }
  if (name === "--version" || name === "version") {
    const { version } = await import("./cli-commands.js");
    print(await version());
    return 0;
  }
  if (name === "completion") {
    const script = completionScript(rest[0], COMMANDS.map((command) => ({ name: command.name, about: command.about, flags: optionsOf(command).map((option) => option.name) })));
    if (script === undefined) throw new UsageError(`no completion for '${rest[0] ?? ""}'. Use bash, zsh or fish`);
    print(script);
    return 0;
  }
  const command = COMMANDS.find((each) => each.name === name);
  if (!command) throw new UsageError(`unknown command '${name}'`);
  const { values, positionals } = parse(command, rest);
  if (values.help) {
    print(help(command));
    return 0;
  }
  if (positionals.length < command.min || positionals.length > command.max) throw new UsageError(`usage: jerboa ${command.name} ${command.args}`.trim());
  let interrupted = false;
  for (const signal of ["SIGINT", "SIGTERM"] as const) {
    process.on(signal, () => {
      // The second one does not wait.
      if (interrupted) return endBy(signal);
      interrupted = true;
      controller.abort();
    });
  }
  const ended = (): number | undefined => (outputClosed ? 141 : interrupted && !command.endless ? 130 : undefined);
  try {
    const failed = await command.run({ args: positionals, values, json: values.json === true, signal: controller.signal });
    return ended() ?? failed ?? 0;
  } catch (thrown) {
    if (outputClosed || interrupted) return ended() ?? 0;
    throw thrown;
  }
}

/** What this command line has for the calls that errors advise. */
const TERMS: Record<string, string> = {
  "model.generate": "use 'jerboa run'",
  "model.embed": "use 'jerboa embed'",
  "model.transcribe": "use 'jerboa transcribe'",
  "model.audio.speech.create": "use 'jerboa speak'",
  source: "the path of a folder or .gguf file that exists",
  token: "--token TOKEN, or set HF_TOKEN",
  server_token: "--token TOKEN",
};

/** The message of an error with the names of commands and flags. */
function flagged(error: JerboaError): string {
  // Only names that are no words, such as maxContext.
  const flags = LOAD_FLAGS.map(({ name }) => [optionName(name), `--${name}`] as const).filter(([option]) => /[A-Z]/.test(option));
  const text = flags.reduce((said, [option, flag]) => said.replaceAll(option, flag), worded(error, TERMS));
  return text.startsWith(LOAD_PREFIX) ? text.slice(LOAD_PREFIX.length) : text;
}

/** What errors of options begin with: the method that a page calls. */
const LOAD_PREFIX = "loadModel: ";

function report(thrown: unknown): number {
  if (thrown instanceof UsageError) {
    note(`jerboa: ${thrown.message}${/^usage:/.test(thrown.message) ? "\n" : ". "}See 'jerboa --help'.`);
    return 2;
  }
  const error = JerboaError.from(thrown);
  const { code } = error;
  const message = flagged(error);
  if (argv.includes("--json")) printJson({ error: { code, message } });
  else note(`jerboa: ${message}`);
  return code === "request" && /unknown option|must be/.test(message) ? 2 : 1;
}

const controller = new AbortController();
let outputClosed = false;
// A reader such as `head` has read enough.
stdout.on("error", () => {
  outputClosed = true;
  controller.abort();
});
stderr.on("error", () => {});

const code = await run(argv.slice(2)).catch(report);
// The driver ends the process with an error if it exits while pipelines are compiled.
if (!(await endThreads()) && controller.signal.aborted) endBy("SIGINT");
// The GPU's threads would keep the process alive.
if (stdout.write("")) exit(code);
setTimeout(() => exit(code), 100);
