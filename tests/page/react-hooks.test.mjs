/** The hooks of jerboa/react one by one, over the fake engine: in Chromium, and rendered on a server. */

import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { PassThrough } from "node:stream";
import { text } from "node:stream/consumers";
import { after, before, test } from "node:test";
import { build } from "esbuild";
import { launch } from "./support/browser.mjs";
import { buildFacade } from "./support/facade.mjs";
import { ROOT } from "./support/paths.mjs";
import { serve } from "./support/server.mjs";

const options = { timeout: 120_000 };
const PAGE = `<!doctype html><title>Hooks</title><link rel="icon" href="data:,"><script type="importmap">{ "imports": { "react": "/react.js" } }</script><div id="root"></div>
<script type="module">
import * as react from "react";
import * as hooks from "/facade/react/index.js";
import * as jerboa from "/facade/index.js";
window.workers = { made: 0, ended: 0 };
window.Worker = class extends Worker {
  constructor(...given) { super(...given); workers.made++; }
  terminate() { workers.ended++; super.terminate(); }
};
const h = react.createElement;
/** Renders components: each stores what its hook returns under its name. */
const root = react.createRoot(document.getElementById("root"));
const show = (...elements) => root.render(h(react.StrictMode, null, ...elements));
/** A component that calls a hook and stores its result. */
const Hook = ({ name, hook, args, onRender }) => {
  window[name] = hooks[hook](...args);
  onRender?.(window[name]);
  return h("p", { id: name }, window[name].status);
};
const use = (name, hook, ...args) => h(Hook, { key: name, name, hook, args });
const until = async (isMet, what = String(isMet)) => {
  for (const end = Date.now() + 10000; !(await isMet()); ) {
    if (Date.now() > end) throw new Error("never: " + what);
    await sleep(10);
  }
};
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
/** Ends the loads of models whose name has "late". */
const endLoads = () => {
  const channel = new BroadcastChannel("late");
  const timer = setInterval(() => channel.postMessage(true), 20);
  return () => (clearInterval(timer), channel.close());
};
const long = Array.from({ length: 3000 }, (_, i) => "word" + i).join(" ");
Object.assign(window, { react, hooks, jerboa, h, root, show, Hook, use, until, sleep, endLoads, long });
</script>`;

let facade, folder, server, browser;

before(async () => {
  facade = await buildFacade();
  folder = await mkdtemp(join(ROOT, "target", "hooks-"));
  await writeFile(join(folder, "index.html"), PAGE);
  const names = ["Activity", "Component", "StrictMode", "Suspense", "createElement", "useCallback", "useEffect", "useId", "useRef", "useState", "useSyncExternalStore"];
  const contents = `import React from "react";\nexport { hydrateRoot, createRoot } from "react-dom/client";\nexport const { ${names.join(", ")} } = React;`;
  await build({ stdin: { contents, resolveDir: ROOT }, bundle: true, format: "esm", outfile: join(folder, "react.js"), define: { "process.env.NODE_ENV": '"development"' }, logLevel: "silent" });
  server = await serve({ "/": folder, "/facade/": facade.folder });
  browser = await launch(["--host-resolver-rules=MAP lan.test 127.0.0.1"]);
}, options);

after(async () => {
  await browser?.close();
  await server?.close();
  await facade?.remove();
  if (folder) await rm(folder, { recursive: true, force: true });
});

/** Runs a function in a new page; returns its result and the page's problems. */
async function inPage(run, argument, url = server.url) {
  const context = await browser.newContext();
  const page = await context.newPage();
  const problems = [];
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  await page.goto(`${url}/index.html`);
  await page.waitForFunction(() => window.until);
  const result = await page.evaluate(run, argument);
  await page.waitForTimeout(20);
  await context.close();
  return { result, problems };
}

test("setMessages stops a running answer, which does not come back", options, async () => {
  const { result, problems } = await inPage(async () => {
    show(use("c", "useChat", "org/plain"));
    await until(() => window.c);
    const sent = c.send(long);
    await until(() => c.messages[1]?.content.length > 200);
    c.setMessages([]);
    await sent;
    await sleep(200);
    const cleared = [c.messages.length, c.status];
    await c.send("one two");
    await until(() => c.status === "ready");
    return [...cleared, c.messages.map(({ content }) => content), new Set(c.messages.map(({ id }) => id)).size];
  });
  assert.deepEqual(result, [0, "ready", ["one two", "one two"], 2]);
  assert.deepEqual(problems, []);
});

test("a call survives StrictMode's second mount; a hidden component ends its call and says so", options, async () => {
  const { result, problems } = await inPage(async () => {
    const Once = () => {
      window.c = hooks.useCompletion("org/plain");
      const asked = react.useRef(false);
      react.useEffect(() => {
        if (asked.current) return;
        asked.current = true;
        c.complete("one two").then((text) => (window.text = text ?? "nothing"));
      });
      return null;
    };
    show(h(Once));
    await until(() => window.text);
    await until(() => c.status === "ready");
    const activity = (mode) => show(h(react.Activity, { mode }, use("d", "useCompletion", "org/late")));
    activity("visible");
    await until(() => window.d);
    const completed = d.complete("one");
    await until(() => d.status === "loading");
    activity("hidden");
    const hidden = (await completed) ?? "nothing";
    activity("visible");
    await sleep(100);
    return [text, hidden, d.status];
  });
  assert.deepEqual(result, ["one two", "nothing", "ready"]);
  assert.deepEqual(problems, []);
});

test("load() and Suspense wait for a load: another component's end does not cancel it, the own one cancels that of load()", options, async () => {
  const { result, problems } = await inPage(async () => {
    const source = "org/late";
    const button = use("l", "useModel", source, { preload: false });
    const other = use("o", "useModel", source);
    show(button, other);
    await until(() => window.l);
    l.load();
    await until(() => l.status === "loading");
    show(button);
    await sleep(100);
    const afterOther = l.status;
    show();
    await until(() => workers.ended === 1);
    const afterOwn = { ...workers };
    const suspended = (name, hook) => h(react.Suspense, { key: name, fallback: h("p", null, "Loading…") }, use(name, hook, source, { suspense: true }));
    show(suspended("s", "useModel"), other);
    await until(() => workers.made === 2);
    show(suspended("s", "useModel"));
    await sleep(100);
    const afterSibling = { ...workers };
    const end = endLoads();
    await until(() => window.s);
    end();
    return [afterOther, afterOwn, afterSibling, s.status, workers.made];
  });
  assert.deepEqual(result, ["loading", { made: 1, ended: 1 }, { made: 2, ended: 1 }, "ready", 2]);
  assert.deepEqual(problems, []);
});

test("another model ends the call and clears the error of the last one", options, async () => {
  const { result, problems } = await inPage(async () => {
    show(use("c", "useCompletion", "org/plain"));
    await until(() => window.c);
    const running = c.complete(long);
    await until(() => c.completion.length > 200);
    show(use("c", "useCompletion", "no/such"));
    const ended = (await running) ?? "nothing";
    await until(() => c.status === "ready");
    await c.complete("one");
    await until(() => c.status === "error");
    const failed = c.error.code;
    show(use("c", "useCompletion", "org/plain"));
    await until(() => c.model);
    const switched = [c.status, c.error];
    // A function of each render goes on with the call of the one before.
    const model = await jerboa.loadModel("org/plain");
    const Inline = () => {
      window.i = hooks.useCompletion(() => model);
      return null;
    };
    show(h(Inline));
    await until(() => window.i);
    return [ended, failed, ...switched, await i.complete("one two three")];
  });
  assert.deepEqual(result, ["nothing", "not_found", "ready", undefined, "one two three"]);
  assert.deepEqual(problems, []);
});

test("a load that fails is no unhandled rejection, and a caller that awaits it gets the error", options, async () => {
  const { result, problems } = await inPage(async () => {
    const Button = () => {
      window.m = hooks.useModel("no/such", { preload: false });
      return h("button", { onClick: m.load }, m.error?.code ?? "Load");
    };
    show(h(Button));
    await until(() => document.querySelector("button"));
    document.querySelector("button").click();
    await until(() => m.status === "error");
    hooks.preloadModel("no/such", { maxContext: 8 });
    await sleep(100);
    return [m.error.code, await m.load().catch(({ code }) => code)];
  });
  assert.deepEqual(result, ["not_found", "not_found"]);
  assert.deepEqual(problems, []);
});

test("a component that suspends does not change others while React renders", options, async () => {
  const { result, problems } = await inPage(async () => {
    const watching = use("w", "useModel", "org/plain", { preload: false });
    show(watching);
    await until(() => window.w);
    show(watching, h(react.Suspense, { key: "s", fallback: null }, use("s", "useModel", "org/plain", { suspense: true })));
    await until(() => window.s && w.status === "ready");
    return workers.made;
  });
  assert.equal(result, 1);
  assert.deepEqual(problems, []);
});

test("status is that of the load under preload, and of its failure", options, async () => {
  const { result, problems } = await inPage(async () => {
    show(use("c", "useCompletion", "org/late", { preload: true }), use("f", "useCompletion", "no/such", { preload: true }), use("i", "useCompletion", "org/late"));
    await until(() => window.c?.status === "loading" && window.f?.status === "error");
    const loading = [c.status, f.status, f.error.code, i.status];
    const end = endLoads();
    await until(() => c.status === "ready");
    end();
    return [...loading, Boolean(c.model)];
  });
  assert.deepEqual(result, ["loading", "error", "not_found", "ready", true]);
  assert.deepEqual(problems, []);
});

test("unload() while another component waits says what happened; a model that its owner unloaded is refused", options, async () => {
  const { result, problems } = await inPage(async () => {
    show(use("c", "useCompletion", "org/late"), use("m", "useModel", "org/late", { preload: false }));
    await until(() => window.c);
    c.complete("one");
    await until(() => c.status === "loading");
    await m.unload();
    await until(() => c.status === "error");
    const said = c.error.message;
    window.own = await jerboa.loadModel("org/plain");
    show(use("d", "useCompletion", own));
    await until(() => window.d?.model);
    await own.unload();
    show();
    await sleep(20);
    show(use("e", "useModel", own));
    await until(() => window.e?.status === "error");
    return [said, e.error.code, e.error.message];
  });
  assert.deepEqual(result, ["The load was cancelled, because the model was unloaded while it loaded. Call it again to load the model.", "unloaded", "The model was unloaded. Call loadModel again, and pass the new model."]);
  assert.deepEqual(problems, []);
});

test("faults of the page's own code are not reported as bugs of the package", options, async () => {
  const { result, problems } = await inPage(async () => {
    const cycle = {};
    cycle.self = cycle;
    const results = { bigint: 5n, cycle, func: () => 1 };
    const seen = [];
    for (const name of Object.keys(results)) {
      const tools = { weather: { execute: () => results[name] } };
      show(use(name, "useChat", "org/Qwen3", { tools }));
      await until(() => window[name]);
      await window[name].send("How warm is it?");
      await until(() => window[name].status === "error");
      seen.push(`${window[name].error.code}: ${window[name].error.message}`);
    }
    show(use("o", "useObject", "org/plain", {}));
    await until(() => window.o);
    await o.submit("one");
    await until(() => o.status === "error");
    seen.push(`${o.error.code}: ${o.error.message}`);
    show(use("f", "useChat", "org/plain", { onFinish: () => { throw new TypeError("mine"); } }));
    await until(() => window.f);
    await f.send("one");
    await until(() => f.status === "ready");
    return [...seen, f.messages.length];
  });
  const refused = /^request: useChat: the result of the tool 'weather' cannot be written as JSON: .*\. Return a string, or a value that JSON\.stringify takes\.$/s;
  for (const said of result.slice(0, 3)) assert.match(said, refused);
  assert.match(result[2], /JSON: it is a function\./);
  assert.deepEqual(result.slice(3), ["request: useObject: 'schema' is undefined. Pass a JSON Schema, or a schema of Zod 4.2 or newer.", 2]);
  assert.deepEqual(problems, ["TypeError: mine"]);
});

test("a page that is not secure: a call fails with advice, ids need no secure context", options, async () => {
  const { result, problems } = await inPage(async () => {
    const model = { info: { model: "own" }, chat: { completions: { create: async function* () { yield { choices: [{ delta: { content: "Hello." } }] }; } } } };
    const load = () => model;
    show(use("c", "useChat", load, { initialMessages: [{ role: "assistant", content: "Hello" }] }));
    await until(() => window.c);
    await c.send("one");
    await until(() => c.status === "ready");
    const code = async (call) => call().then(() => "done", ({ code, message }) => `${code}: ${message}`);
    const served = await jerboa.createFetch({ chat: load })("http://jerboa/v1/models");
    return [isSecureContext, c.messages.map(({ content }) => content), served.status, await code(() => jerboa.savedSessions()), await code(() => jerboa.deleteSavedSession("a"))];
  }, undefined, server.url.replace("127.0.0.1", "lan.test"));
  const missing = (where) => `store: ${where}: this page has no private file system. Open it over https, or use the Blob of session.save().`;
  assert.deepEqual(result, [false, ["Hello", "one", "Hello."], 200, missing("savedSessions"), missing("deleteSavedSession")]);
  assert.deepEqual(problems, []);
});

/** The messages of a conversation with their ids, as a component of server and page. */
const conversation = ({ createElement, useChat }) => () => createElement("ul", null, useChat("org/plain", { initialMessages: [{ role: "assistant", content: "Hello" }, { role: "user", content: "Hi" }] }).messages.map(({ id, content }) => createElement("li", { key: id, id }, content)));

test("initial messages have the same ids on the server and in the browser, without random values", options, async (t) => {
  const { createElement } = await import("react");
  const { renderToString } = await import("react-dom/server");
  const { useChat } = await import(`${facade.url}/react/index.js`);
  for (const name of ["randomUUID", "getRandomValues"]) t.mock.method(crypto, name, () => assert.fail(`crypto.${name} was called`));
  t.mock.method(Math, "random", () => assert.fail("Math.random was called"));
  const html = renderToString(createElement(conversation({ createElement, useChat })));
  t.mock.restoreAll();
  assert.match(html, /<li id="[^"]+0">Hello<\/li><li id="[^"]+1">Hi<\/li>/);
  const { result, problems } = await inPage(async ([html, source]) => {
    const container = document.body.appendChild(document.createElement("main"));
    container.innerHTML = html;
    const Conversation = (0, eval)(source)({ createElement: h, useChat: hooks.useChat });
    react.hydrateRoot(container, h(Conversation));
    await sleep(100);
    return container.innerHTML === html;
  }, [html, String(conversation)]);
  assert.equal(result, true);
  assert.deepEqual(problems, []);
});

test("on the server Suspense renders its fallback, by an error that Next.js takes for its own", options, async () => {
  const { createElement, Suspense } = await import("react");
  const { renderToPipeableStream, renderToString } = await import("react-dom/server");
  const { useModel } = await import(`${facade.url}/react/index.js`);
  const Info = () => createElement("p", null, useModel("org/plain", { suspense: true }).model.info.model);
  const app = createElement(Suspense, { fallback: "Loading…" }, createElement(Info));
  assert.match(renderToString(app), /Loading…/);
  const errors = [];
  const html = await text(renderToPipeableStream(app, { onError: (error) => (errors.push(error), error.digest) }).pipe(new PassThrough()));
  assert.match(html, /Loading…/);
  assert.match(html, /data-dgst="BAILOUT_TO_CLIENT_SIDE_RENDERING"/);
  assert.deepEqual(errors.map(({ code, reason }) => [code, reason]), [["no_webgpu", "useModel() with 'suspense'"]]);
});
