/** The command line in Node: each command on the bundled models, and OpenAI's client against `serve`. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { cp, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { createServer, request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import OpenAI from "openai";
import { assertBuilt } from "./support/built.mjs";
import { stories } from "./support/golden.mjs";
import { startHub } from "./support/hub.mjs";
import { PACKAGE, ROOT, STORIES } from "./support/paths.mjs";
import { useSoftwareGpu } from "./support/software-gpu.mjs";
import { wav } from "./support/wav.mjs";

const options = { timeout: 300_000 };
const CLI = `${PACKAGE}/node/cli.js`;
const EXACT = ["--weights", "f32", "--kv", "f32", "--tune", "off"];
const CHAT = `${ROOT}/www/public/models/tiny-vision`;
let folder, hub, golden, env;

before(async () => {
  assertBuilt();
  useSoftwareGpu();
  folder = await mkdtemp(join(tmpdir(), "jerboa-cli-"));
  await cp(STORIES, join(folder, "repos/org/stories"), { recursive: true });
  hub = await startHub(join(folder, "repos"));
  golden = await stories();
  env = { ...process.env, HF_HOME: join(folder, "home"), HF_ENDPOINT: hub.url };
  for (const name of ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ASSETS_CACHE", "HF_TOKEN", "JERBOA_API_KEY"]) delete env[name];
}, options);

after(async () => {
  hub?.close();
  await rm(folder, { recursive: true, force: true });
});

/** Runs a command; returns its exit code and what it printed. */
function jerboa(args, input = "", environment = env) {
  return new Promise((resolve) => {
    const child = spawn(process.execPath, [CLI, ...args], { env: environment, cwd: folder });
    let [stdout, stderr] = ["", ""];
    child.stdout.on("data", (data) => (stdout += data));
    child.stderr.on("data", (data) => (stderr += data));
    child.on("close", (code) => resolve({ code, stdout, stderr }));
    child.stdin.end(input);
  });
}

/** What a command prints on standard error besides phases of the load and lines of the GPU's driver. */
const messages = (stderr) => stderr.replace(/^(config|tokenizer|weights|compile|error: XDG_.*)\n/gm, "");

/** The JSON that a command prints. */
async function json(args, input) {
  const { code, stdout, stderr } = await jerboa([...args, "--json"], input);
  assert.equal(code, 0, stderr);
  return JSON.parse(stdout);
}

test("help, versions, completions, and wrong command lines", options, async () => {
  const help = await jerboa([]);
  assert.equal(help.code, 2);
  for (const name of ["chat", "run", "embed", "transcribe", "speak", "serve", "mcp", "pull", "list", "rm", "info", "doctor"]) assert.match(help.stdout, new RegExp(`^  ${name} `, "m"));
  assert.match((await jerboa(["serve", "--help"])).stdout, /-p, --port NUMBER +8080 by default/);
  assert.deepEqual(await jerboa(["help", "serve"]), await jerboa(["serve", "--help"]));
  for (const args of [["help"], ["help", "completion"]]) assert.deepEqual(await jerboa(args), { ...help, code: 0 });
  assert.match((await jerboa(["--version"])).stdout, /^\d+\.\d+\.\d+\n$/);
  for (const shell of ["bash", "zsh", "fish"]) assert.match((await jerboa(["completion", shell])).stdout, /transcribe/, shell);
  for (const [args, message] of [
    [["fly"], /unknown command 'fly'/],
    [["help", "fly"], /unknown command 'fly'/],
    [["run"], /usage: jerboa run MODEL/],
    [["run", STORIES, "--warp"], /Unknown option '--warp'/],
    [["run", STORIES, "- list this"], /begins with '-' after '--', as in: jerboa run MODEL -- '- text'/],
    [["list", "."], /^jerboa: usage: jerboa list\nSee 'jerboa --help'\.\n$/],
    [["serve", STORIES, "--port", "99999"], /^jerboa: serve: '--port' must be a whole number from 0 to 65535, not 99999/],
    [["serve", STORIES, "--port", "80.5"], /'--port' must be/],
    [["serve", STORIES, "--port=-1"], /'--port' must be/],
    [["serve", STORIES, "--api-key", ""], /'--api-key' must be a key/],
    [["serve", STORIES, "--origin", "https://app.example/path"], /'--origin' must be an origin such as/],
    [["run", STORIES, "x", "--max-tokens", "-5"], /^jerboa: '--max-tokens' must be a whole number from 1 to \d+, not -5\. See/],
    [["run", STORIES, "x", "-n", "-5"], /^jerboa: '--max-tokens' must be/],
    [["run", STORIES, "x", "--max-tokens=0"], /^jerboa: '--max-tokens' must be/],
    [["run", STORIES, "x", "--top-p", "3"], /^jerboa: '--top-p' must be a number from 0 to 1, not 3\. See/],
    [["run", STORIES, "x", "--max-context", "-1"], /^jerboa: '--max-context' must be a whole number from 1/],
    [["serve", STORIES, "--port", "-1"], /'--port' must be/],
    [["run", STORIES, "x", "--max-tokens", "many"], /'--max-tokens' needs a number, not 'many'/],
    [["completion", "tcsh"], /no completion for 'tcsh'/],
  ]) {
    const { code, stderr } = await jerboa(args);
    assert.equal(code, 2, stderr);
    assert.match(stderr, message);
  }
  // A negative seed is one, and what follows '--' is text.
  assert.deepEqual((await jerboa(["run", "./nothing", "--json", "--seed", "-3", "--", "--seed", "-4"])).code, 1);
  const missing = await jerboa(["info", "./nothing", "--json"]);
  assert.deepEqual([missing.code, JSON.parse(missing.stdout).error.code], [1, "missing_file"]);
});

test("a Node below the package's engines is named, in a script that it can parse", options, async () => {
  const under = (version, args = [CLI, "--version"]) => new Promise((resolve) => {
    const set = `data:text/javascript,Object.defineProperty(process, "versions", { value: { ...process.versions, node: "${version}" } })`;
    const child = spawn(process.execPath, ["--import", set, ...args]);
    let stderr = "";
    child.stderr.on("data", (data) => (stderr += data));
    child.on("close", (code) => resolve([code, stderr]));
  });
  const { engines } = JSON.parse(await readFile(`${PACKAGE}/package.json`, "utf8"));
  const [, lowest, major, minor] = /^>=((\d+)\.(\d+))$/.exec(engines.node);
  for (const version of ["12.22.12", "18.20.8", `${major}.${minor - 1}.2`]) assert.deepEqual(await under(version), [1, `jerboa: Node ${version} is too old. Install Node ${lowest} or newer.\n`]);
  for (const version of [`${lowest}.0`, `${Number(major) + 2}.0.0`]) assert.deepEqual(await under(version), [0, ""]);
  // The library too: its modules link in Node 18, which has no openAsBlob, so that the sentence comes first.
  const said = (entry) => ["--input-type=module", "--eval", `await import(${JSON.stringify(`${PACKAGE}/node/${entry}`)}).catch(({ message }) => (console.error(message), process.exit(1)))`];
  for (const entry of ["node.js", "router.js"]) {
    assert.deepEqual(await under("18.20.8", said(entry)), [1, `jerboa: Node 18.20.8 is too old. Install Node ${lowest} or newer.\n`]);
    assert.deepEqual(await under(`${lowest}.0`, said(entry)), [0, ""]);
  }
  const scripts = (await readdir(`${PACKAGE}/node`)).filter((name) => name.endsWith(".js"));
  for (const name of scripts) assert.doesNotMatch(await readFile(`${PACKAGE}/node/${name}`, "utf8"), /\bimport\{[^}]*\bopenAsBlob\b/, name);
  // What Node 12 cannot link or parse.
  assert.doesNotMatch((await readFile(CLI, "utf8")).replace(/\/\/#.*/, ""), /\bimport\s*["'{*\w]|\bfrom\s*["']|\?\.|\?\?|\bawait\b/);
});

test("completion scripts are scripts of their shells", options, async () => {
  const { stdout } = await jerboa(["completion", "bash"]);
  const script = join(folder, "completion.bash");
  await writeFile(script, `${stdout}\nCOMP_WORDS=(jerboa tr); COMP_CWORD=1; _jerboa; echo "\${COMPREPLY[0]}"\nCOMP_WORDS=(jerboa serve --po); COMP_CWORD=2; _jerboa; echo "\${COMPREPLY[0]}"\n`);
  const completed = await new Promise((resolve) => {
    const child = spawn("bash", [script]);
    let text = "";
    child.stdout.on("data", (data) => (text += data));
    child.on("close", () => resolve(text));
  });
  assert.equal(completed, "transcribe\n--port\n");
});

test("doctor reports the device", options, async () => {
  const { ok, device, checks } = await json(["doctor"]);
  assert.equal(ok, true, JSON.stringify(checks));
  assert.ok(checks.length > 3 && device.engine);
});

test("models are pulled, listed, run and removed", options, async () => {
  assert.deepEqual(await json(["list"]), []);
  assert.match((await jerboa(["pull", "org/stories", ...EXACT])).stdout, /org\/stories is in the cache/);
  assert.match((await jerboa(["list"])).stdout, /^org\/stories +main +1\.\d MB +\d+ +complete$/m);
  const { text } = await json(["run", "org/stories", golden.prompt, "-n", "5", "-t", "0", ...EXACT]);
  assert.ok(text && golden.newText.startsWith(text), text);
  const piped = await jerboa(["run", "org/stories", "-n", "5", "-t", "0", ...EXACT], golden.prompt);
  assert.equal(piped.stdout, `${text}\n`, piped.stderr);
  assert.match((await jerboa(["info", "org/stories", ...EXACT])).stdout, /^architecture +LlamaForCausalLM$/m);
  assert.match((await jerboa(["rm", "org/stories"])).stdout, /Removed org\/stories: 1\.\d MB/);
  assert.deepEqual(await json(["list"]), []);
  assert.equal((await jerboa(["rm", "org/stories"])).code, 1);
});

test("pull needs no GPU, resumes, and checks what it got", options, async () => {
  const blind = { ...env, VK_ICD_FILENAMES: "/nowhere", VK_DRIVER_FILES: "/nowhere" };
  const run = (args) => jerboa(args, "", blind);
  assert.equal((await run(["doctor"])).code, 1, "there is a GPU");
  await hub.control("faults", [{ match: "model.safetensors", kind: "drop", after: 300_000, times: 1 }]);
  const broken = await run(["pull", "org/stories"]);
  assert.equal(broken.code, 1);
  assert.match(broken.stderr, new RegExp(`downloading .* from ${hub.url} failed: .*Run the command again to resume\\.`));
  await hub.control("reset", {});
  const pulled = await run(["pull", "org/stories", "--json"]);
  assert.equal(pulled.code, 0, pulled.stderr);
  assert.match(JSON.parse(pulled.stdout).revision, /^[0-9a-f]{40}$/);
  const ranges = (await hub.control("log")).filter(({ path, range, method }) => method === "GET" && path.includes("model.safetensors") && range);
  assert.deepEqual(ranges.map(({ range }) => /^bytes=[1-9]\d*-$/.test(range)), [true, true], "the rest, from the Hub and from where it leads");
  const [model] = JSON.parse((await run(["list", "--json"])).stdout);
  assert.deepEqual([model.model, model.complete], ["org/stories", true]);
  const { text } = await json(["run", "org/stories", golden.prompt, "-n", "5", "-t", "0", ...EXACT]);
  assert.ok(text && golden.newText.startsWith(text), text);
  await hub.control("reset", {});
  await jerboa(["rm", "org/stories"]);
  for (const [name, code, message] of [["org/none", 1, /was not found/], ["stories", 2, /must be|not a model of the Hub/], ["org/stories/x.gguf", 1, /has no file x\.gguf/]]) {
    const { stderr, code: got } = await run(["pull", name]);
    assert.match(stderr, message);
    assert.ok(got === code || got === 1, `${name}: ${got}`);
  }
  const refusal = async (...args) => {
    const { code, stderr } = await run(["pull", ...args]);
    assert.equal(code, /must be/.test(stderr) ? 2 : 1, stderr);
    return stderr.trimEnd();
  };
  for (const path of [STORIES, "./repos", "repos/org/stories", "../none"]) assert.match(await refusal(path), /^jerboa: pull: '.*' is not a model of the Hub but a local path\. /);
  assert.match(await refusal("./repos"), /It needs no download: pass the path to the other commands\.$/);
  assert.match(await refusal("../none"), /Use 'org\/name' or 'org\/name\/file\.gguf'\.$/);
  for (const endpoint of ["nonsense", "ftp://hub.example", ""]) assert.equal(await refusal("org/stories", "--endpoint", endpoint), `jerboa: pull: '--endpoint' must be a URL such as https://huggingface.co, not '${endpoint}'.`);
  assert.match(await refusal("org/stories", "--endpoint", "http://127.0.0.1:1/"), /^jerboa: downloading org\/stories from http:\/\/127\.0\.0\.1:1 failed: fetch failed \(.+\)\. Check the connection, and --endpoint or HF_ENDPOINT if one is set\.$/);
  assert.equal(await refusal("org/none", "--revision", "v9"), `jerboa: org/none was not found at revision 'v9' on ${hub.url}. Check the name, and that it has this revision.`);
  assert.equal(await refusal("org/none"), `jerboa: org/none was not found at revision 'main' on ${hub.url}. Check the name.`);
  for (const [status, advice] of [[400, /HTTP 400\. Check --endpoint or HF_ENDPOINT if one is set\.$/], [503, /HTTP 503\. Run the command again later to resume\.$/], [401, /^jerboa: org\/stories does not exist or needs an access token \(HTTP 401\)\. .*--token or set HF_TOKEN\.$/]]) {
    await hub.control("faults", [{ match: "api/models/org/stories", kind: "status", status }]);
    assert.match(await refusal("org/stories"), advice);
    await hub.control("reset", {});
  }
  await hub.control("faults", [{ match: "api/models/org/stories", kind: "portal" }]);
  assert.equal(await refusal("org/stories"), `jerboa: ${hub.url} sent no list of files for org/stories, so it is not a Hugging Face Hub. Check --endpoint or HF_ENDPOINT.`);
  await hub.control("reset", {});
  await hub.control("faults", [{ match: "model.safetensors", kind: "flip", after: 5000 }]);
  assert.match((await run(["pull", "org/stories"])).stderr, /SHA-256/);
  await hub.control("reset", {});
});

test("mcp serves its tools to the SDK's client", options, async () => {
  const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
  const { StdioClientTransport } = await import("@modelcontextprotocol/sdk/client/stdio.js");
  const encoder = `${ROOT}/www/public/models/words-encoder`;
  const { loadModel } = await import(`${PACKAGE}/node/node.js`);
  const { createMemory } = await import(`${PACKAGE}/node/memory/index.js`);
  const { fileStore } = await import(`${PACKAGE}/node/memory/file.js`);
  const file = join(folder, "notes.jsonl");
  const model = await loadModel(encoder);
  const memory = await createMemory({ model, store: fileStore(file) });
  await memory.add([{ id: "bees", text: "Bees live in a hive.", metadata: { topic: "animals" } }, { id: "rust", text: "Iron rusts in water." }]);
  await memory.close();
  const empty = join(folder, "empty.jsonl");
  await (await createMemory({ model, store: fileStore(empty) })).close();
  await model.unload();

  const client = new Client({ name: "test", version: "1.0.0" });
  await client.connect(new StdioClientTransport({ command: process.execPath, args: [CLI, "mcp", "--chat", STORIES, "--embed", encoder, "--memory", file, ...EXACT], env, stderr: "ignore" }));
  try {
    const { tools } = await client.listTools();
    assert.deepEqual(tools.map(({ name }) => name), ["generate", "embed", "search_memory"]);
    const call = (name, args) => client.callTool({ name, arguments: args }, undefined, { timeout: 200_000 });
    const { content } = await call("generate", { prompt: golden.prompt, max_tokens: 5, temperature: 0 });
    assert.ok(content[0].text && golden.newText.startsWith(content[0].text), content[0].text);
    const { structuredContent } = await call("embed", { texts: ["one", "two"] });
    assert.deepEqual(structuredContent.vectors.map(({ length }) => length), [56, 56]);
    const found = await call("search_memory", { query: "Where do bees live?", k: 1 });
    assert.deepEqual(found.structuredContent.passages.map(({ document, text, metadata }) => [document, text, metadata]), [["bees", "Bees live in a hive.", { topic: "animals" }]]);
    assert.match(found.content[0].text, /^\[bees\]\nBees live/);
    const refused = await call("generate", { prompt: 5 });
    assert.deepEqual([refused.isError, refused.content[0].text], [true, "generate: 'prompt' must be a string."]);
    for (const texts of ["a", [], ["a", 5], undefined]) {
      const { isError, content } = await call("embed", { texts });
      assert.deepEqual([isError, content[0].text], [true, "embed: 'texts' must be an array of one or more strings."]);
    }
    await assert.rejects(call("fly", {}), /unknown tool 'fly'\. Use one of: generate/);
  } finally {
    await client.close();
  }
  const other = new Client({ name: "test", version: "1.0.0" });
  await other.connect(new StdioClientTransport({ command: process.execPath, args: [CLI, "mcp", "--embed", encoder, "--memory", empty], env, stderr: "ignore" }));
  const { content } = await other.callTool({ name: "search_memory", arguments: { query: "bees" } }, undefined, { timeout: 200_000 });
  assert.equal(content[0].text, "The memory has no documents.");
  await other.close();
  for (const [args, message] of [[[], /Pass --chat MODEL/], [["--chat", STORIES, "--memory", file], /Pass --embed MODEL/], [["--embed", encoder, "--memory", `${file}.none`], /there is no file '.*notes\.jsonl\.none' for '--memory'\. Check the path/]]) assert.match((await jerboa(["mcp", ...args])).stderr, message);
});

test("chat answers each line", options, async () => {
  const { code, stdout, stderr } = await jerboa(["chat", CHAT, "--json", "-n", "4", "-t", "0", "--tune", "off", "--max-context", "512"], "one\ntwo\n");
  assert.equal(code, 0, stderr);
  const answers = stdout.trim().split("\n").map((line) => JSON.parse(line));
  assert.deepEqual(answers.map(({ role, content }) => [role, typeof content]), [["assistant", "string"], ["assistant", "string"]]);
});

test("vectors, transcripts, and the reason why a model cannot speak", options, async () => {
  const { data } = await json(["embed", `${ROOT}/www/public/models/words-encoder`, "a cat", "a dog", "--tune", "off"]);
  assert.deepEqual(data.map(({ index, embedding }) => [index, embedding.every(Number.isFinite)]), [[0, true], [1, true]]);
  const file = join(folder, "tone.wav");
  await writeFile(file, wav({ seconds: 3, sample: (t) => 0.4 * Math.sin(t * 2000) }));
  const whisper = `${ROOT}/tests/golden/speech/whisper_words`;
  const plain = await jerboa(["transcribe", whisper, file, "--format", "srt", "--tune", "off"]);
  assert.match(plain.stdout, /00:00:00,\d+ --> .*\n.*catching/, plain.stderr);
  const silent = await jerboa(["speak", STORIES, "hello", "--json", ...EXACT]);
  assert.equal(silent.code, 1);
  assert.match(JSON.parse(silent.stdout).error.message, /speech/);
});

test("commands of other tasks and files that are no models are named", options, async () => {
  const encoder = `${ROOT}/www/public/models/words-encoder`;
  for (const [args, message] of [
    [["chat", STORIES, ...EXACT], /no chat template.*Use 'jerboa run' instead/],
    [["embed", STORIES, "x", ...EXACT], /cannot embed: it is a text-generation model, use 'jerboa run' instead/],
    [["run", encoder, "x", "--tune", "off"], /it is an embedding model, use 'jerboa embed' instead/],
    [["chat", encoder, "--tune", "off"], /cannot chat: it is an embedding model, use 'jerboa embed' instead/],
    [["info", "org/none", "--endpoint", "http://127.0.0.1:1"], /the server does not answer/],
    [["info", `${ROOT}/README.md`], /README\.md is not a model. Pass a folder with a model's files, or a \.gguf file/],
  ]) {
    const { code, stderr } = await jerboa(args);
    assert.equal(code, 1, stderr);
    assert.match(stderr, message);
    assert.doesNotMatch(stderr, /this page|CORS/);
  }
});

test("errors advise options of the command line, and paths that are relative", options, async () => {
  await hub.control("gate", { "org/stories": "secret" });
  try {
    const gated = await jerboa(["info", "org/stories", ...EXACT]);
    assert.equal(gated.code, 1);
    assert.match(gated.stderr, /HTTP 401.*pass a token with read access: --token TOKEN, or set HF_TOKEN\.$/m);
  } finally {
    await hub.control("reset", {});
  }
  await cp(STORIES, join(folder, "repos/copy"), { recursive: true });
  const listed = await jerboa(["info", "./repos"]);
  assert.deepEqual([listed.code, messages(listed.stderr)], [1, `jerboa: The folder ${join(folder, "repos")} has no model files: neither config.json nor a .gguf file. Pass one of the folders in it that have a model: ${join(folder, "repos/copy")}.\n`]);
  const local = await jerboa(["info", "repos/copy", ...EXACT]);
  assert.equal(local.code, 1);
  assert.match(local.stderr, /was not found.* For the local folder write '\.\/repos\/copy'\.$/m);
  const none = await jerboa(["info", "nothing", ...EXACT]);
  assert.match(none.stderr, /'nothing' is not a model name: .*Use 'org\/name', the URL of a folder, or the path of a folder or \.gguf file that exists\.$/m);
  await cp(STORIES, join(folder, "copy"), { recursive: true });
  const found = await jerboa(["info", "copy", ...EXACT]);
  assert.match(found.stdout, /^architecture +LlamaForCausalLM$/m, found.stderr);
});

test("an interrupt ends a run with 130, and a closed pipe with 141, quietly", options, async () => {
  const ended = (args, act) => new Promise((resolve) => {
    const child = spawn(process.execPath, [CLI, ...args], { env, cwd: folder, stdio: ["ignore", "pipe", "pipe"] });
    let stderr = "";
    child.stderr.on("data", (data) => (stderr += data));
    child.stdout.once("data", () => act(child));
    child.on("exit", (code, signal) => resolve([code ?? signal, messages(stderr)]));
  });
  const interrupt = (child) => child.kill("SIGINT");
  const close = (child) => child.stdout.destroy();
  const story = ["run", STORIES, golden.prompt, "-n", "400", "-t", "0", ...EXACT];
  assert.deepEqual(await ended(story, interrupt), [130, ""]);
  assert.deepEqual(await ended([...story, "--raw"], interrupt), [130, ""]);
  assert.deepEqual(await ended(story, close), [141, ""]);
});

test("an interrupt while kernels are compiled ends a run with 130 and a server with 0", options, async () => {
  const interrupted = (args, wait) => new Promise((resolve) => {
    const child = spawn(process.execPath, [CLI, ...args], { env, cwd: folder, stdio: ["ignore", "ignore", "pipe"] });
    let stderr = "";
    let sent = false;
    child.stderr.on("data", (data) => {
      stderr += data;
      if (sent || !/^compile$/m.test(stderr)) return;
      sent = true;
      setTimeout(() => child.kill("SIGINT"), wait);
    });
    child.on("close", (code, signal) => resolve([code ?? signal, messages(stderr)]));
  });
  for (const wait of [0, 100, 300]) {
    assert.deepEqual(await interrupted(["run", STORIES, golden.prompt, "-n", "500"], wait), [130, ""], `run, after ${wait} ms`);
    assert.deepEqual(await interrupted(["serve", STORIES, "--port", "0"], wait), [0, ""], `serve, after ${wait} ms`);
  }
});

/** Starts `jerboa serve`; gives its URL and a function that interrupts it and resolves with its exit code. */
async function served(args, environment = {}, model = STORIES) {
  const child = spawn(process.execPath, [CLI, "serve", model, "--port", "0", "--json", ...EXACT, ...args], { env: { ...env, ...environment } });
  let problem = "";
  child.stderr.on("data", (data) => (problem += data));
  const ended = new Promise((resolve) => child.on("close", resolve));
  for await (const line of createInterface({ input: child.stdout })) {
    const { url } = JSON.parse(line);
    const end = () => {
      child.kill("SIGINT");
      return ended;
    };
    return { url, end, problem: () => problem };
  }
  throw new Error(problem);
}

test("OpenAI's client uses the server unchanged, with a key and streams", options, async () => {
  const server = await served(["--api-key", "secret", "--origin", "https://app.example/"]);
  try {
    const client = new OpenAI({ apiKey: "secret", baseURL: server.url, maxRetries: 0 });
    assert.deepEqual((await client.models.list()).data.map(({ id }) => id), [STORIES]);
    const completion = { model: STORIES, prompt: golden.prompt, max_tokens: 5, temperature: 0 };
    const whole = (await client.completions.create(completion)).choices[0].text;
    assert.ok(whole && golden.newText.startsWith(whole), whole);
    let streamed = "";
    for await (const chunk of await client.completions.create({ ...completion, stream: true })) streamed += chunk.choices[0]?.text ?? "";
    assert.equal(streamed, whole);
    const stranger = new OpenAI({ apiKey: "guess", baseURL: server.url, maxRetries: 0 });
    await assert.rejects(stranger.models.list(), (error) => error.status === 401 && error.code === "invalid_api_key" && error.type === "invalid_request_error" && /^req_/.test(error.requestID));
    await assert.rejects(client.completions.create({ ...completion, model: "other" }), { status: 404, code: "model_not_found" });
    const exposed = (await fetch(`${server.url}/models`, { headers: { origin: "https://app.example" } })).headers.get("access-control-expose-headers");
    assert.equal(exposed, "x-request-id, x-should-retry");

    const allowed = async (origin) => (await fetch(`${server.url}/models`, { headers: { origin, authorization: "Bearer secret" } })).headers.get("access-control-allow-origin");
    assert.deepEqual(await Promise.all(["https://app.example", "http://localhost:5173", "https://evil.example"].map(allowed)), ["https://app.example", "http://localhost:5173", null]);
    const preflight = await fetch(`${server.url}/models`, { method: "OPTIONS", headers: { origin: "https://app.example", "access-control-request-headers": "authorization" } });
    assert.deepEqual([preflight.status, preflight.headers.get("access-control-allow-headers")], [204, "authorization"]);
    for (const origin of ["https://evil.example", "null"]) {
      const simple = await fetch(`${server.url}/completions`, { method: "POST", headers: { origin, authorization: "Bearer secret", "content-type": "text/plain" }, body: JSON.stringify(completion) });
      assert.deepEqual([simple.status, (await simple.json()).error.code], [403, "forbidden_origin"]);
      assert.equal((await fetch(`${server.url}/completions`, { method: "OPTIONS", headers: { origin } })).status, 403);
    }
    // A page under another name that resolves to this machine.
    const { hostname, port } = new URL(server.url);
    const rebound = await new Promise((resolve) => request({ hostname, port, path: "/v1/models", headers: { host: "evil.example" } }, resolve).end());
    assert.equal(rebound.statusCode, 403);
  } finally {
    assert.equal(await server.end(), 0);
  }
});

test("the server downloads images of requests from private addresses only with --allow-private-urls", options, async () => {
  let reads = 0;
  const intranet = createServer((_, response) => {
    reads++;
    response.writeHead(404).end();
  });
  await new Promise((resolve) => intranet.listen(0, "127.0.0.1", resolve));
  const { port } = intranet.address();
  const ask = async (url, address) => {
    const messages = [{ role: "user", content: [{ type: "image_url", image_url: { url: address } }] }];
    const response = await fetch(`${url}/chat/completions`, { method: "POST", body: JSON.stringify({ model: CHAT, messages, max_tokens: 1 }) });
    return [response.status, (await response.json()).error];
  };
  try {
    const server = await served([], {}, CHAT);
    try {
      for (const host of ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0", "2130706433"]) {
        const [status, { code, message }] = await ask(server.url, `http://${host}:${port}/a.png`);
        assert.deepEqual([status, code], [400, "request"], `${host}: ${message}`);
        assert.match(message, /leads to a private or local address.*--allow-private-urls/);
      }
      assert.equal(reads, 0);
    } finally {
      await server.end();
    }
    const open = await served(["--allow-private-urls"], {}, CHAT);
    try {
      const [status, { message }] = await ask(open.url, `http://127.0.0.1:${port}/a.png`);
      assert.deepEqual([status, /HTTP 404/.test(message), reads], [500, true, 1], message);
    } finally {
      await open.end();
    }
  } finally {
    intranet.close();
  }
});

test("the server runs without a key if the variable is empty, and says nothing of clients that leave", options, async () => {
  const server = await served([], { JERBOA_API_KEY: "" });
  const { hostname, port } = new URL(server.url);
  try {
    assert.equal((await fetch(`${server.url}/models`)).status, 200);
    const post = (body, leave) => new Promise((resolve) => {
      const sent = request({ hostname, port, method: "POST", path: "/v1/completions", headers: { "content-type": "application/json" } }, (response) => response.once("data", () => leave(sent)));
      sent.on("error", () => {}).on("close", resolve);
      sent.write(body);
      if (leave.early) setTimeout(() => leave(sent), 100);
      else sent.end();
    });
    const leave = (sent) => sent.destroy();
    await post(JSON.stringify({ model: STORIES, prompt: golden.prompt, max_tokens: 400, stream: true }), leave);
    await post('{"model":', Object.assign((sent) => sent.destroy(), { early: true }));
    const trace = await new Promise((resolve) => request({ hostname, port, method: "TRACE", path: "/v1/models" }, resolve).end());
    assert.equal(trace.statusCode, 405);
    const image = { messages: [{ role: "user", content: [{ type: "image_url", image_url: { url: "file:///etc/passwd" } }] }], model: STORIES };
    const file = await fetch(`${server.url}/chat/completions`, { method: "POST", body: JSON.stringify(image) });
    assert.deepEqual([file.status, /'image_url' is a file: URL/.test((await file.json()).error.message)], [400, true]);
    assert.equal((await fetch(`${server.url}/completions`, { method: "POST", body: JSON.stringify({ model: STORIES, prompt: "a", max_tokens: 2 }) })).status, 200);
    const second = await jerboa(["serve", STORIES, "--port", port]);
    assert.equal(second.code, 1);
    assert.equal(second.stderr, `jerboa: serve: the server cannot start: port ${port} of 127.0.0.1 is in use. Choose another --port or --host.\n`);
    assert.equal(messages(server.problem()), "");
  } finally {
    assert.equal(await server.end(), 0);
  }
});
