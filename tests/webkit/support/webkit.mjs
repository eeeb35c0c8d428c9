/** WebKitGTK's MiniBrowser on a virtual screen, driven over WebDriver. It has no WebGPU, and a session without a private file system, as a private window of Safari. */

import { spawn } from "node:child_process";
import { existsSync } from "node:fs";

const FOLDERS = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib"];
const BROWSER = process.env.MINI_BROWSER ?? FOLDERS.flatMap((folder) => ["4.1", "4.0"].map((version) => `${folder}/webkit2gtk-${version}/MiniBrowser`)).find((path) => existsSync(path));
/** Web APIs that Safari has and WebKitGTK switches off. */
const FEATURES = ["FileSystem", "StorageAPI", "AccessHandle", "FileSystemWritableStream"];

/** Ends a process and waits for it. */
const end = (child) =>
  new Promise((resolve) => {
    if (child.exitCode !== null || child.signalCode !== null) return resolve();
    child.once("exit", resolve);
    child.kill();
  });

/** The first output of a process on a stream that matches. */
const matching = (child, stream, pattern) =>
  new Promise((resolve, reject) => {
    let output = "";
    stream.on("data", (data) => {
      output += data;
      const found = pattern.exec(output);
      if (found) resolve(found);
    });
    child.once("error", reject);
    child.once("exit", (code) => reject(new Error(`${child.spawnfile} ended with ${code}`)));
  });

/** A port that is free now. */
async function freePort() {
  const { createServer } = await import("node:net");
  const server = createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** A browser window: `open(url)`, `run(function, …arguments)` with the promise's result or error, `waitFor(function)`, `close()`. */
export async function launch() {
  if (!BROWSER) throw new Error("MiniBrowser is missing: install webkit2gtk-driver, or set MINI_BROWSER to its path.");
  const screen = spawn("Xvfb", ["-displayfd", "3", "-screen", "0", "1280x860x24", "-nolisten", "tcp"], { stdio: ["ignore", "ignore", "ignore", "pipe"] });
  const children = [screen];
  const close = async () => {
    for (const child of children.reverse()) await end(child);
  };
  try {
    const [display] = await matching(screen, screen.stdio[3], /\d+(?=\n)/);
    const port = await freePort();
    const driver = spawn("WebKitWebDriver", [`--port=${port}`, "--host=127.0.0.1"], { stdio: "ignore", env: { ...process.env, DISPLAY: `:${display}`, LIBGL_ALWAYS_SOFTWARE: "1" } });
    children.push(driver);
    const send = async (method, path, body) => {
      const response = await fetch(`http://127.0.0.1:${port}${path}`, { method, ...(body ? { body: JSON.stringify(body) } : {}) });
      const { value } = await response.json();
      if (!response.ok) throw new Error(`${value.error}: ${value.message}`);
      return value;
    };
    for (let attempt = 0; ; attempt++) {
      const ready = await send("GET", "/status").then(({ ready }) => ready, (error) => attempt > 1000 && Promise.reject(error));
      if (ready) break;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    const args = ["--automation", `--features=${FEATURES.map((name) => `+${name}`).join(",")}`];
    const { sessionId } = await send("POST", "/session", { capabilities: { alwaysMatch: { "webkitgtk:browserOptions": { binary: BROWSER, args } } } });
    const session = `/session/${sessionId}`;
    await send("POST", `${session}/timeouts`, { script: 300_000, pageLoad: 120_000 });
    const run = async (work, ...args) => {
      const script = `const done = arguments[arguments.length - 1]; (async (args) => (${work})(...args))(Array.prototype.slice.call(arguments, 0, -1)).then((value) => done({ value }), (error) => done({ error: { code: error.code ?? null, message: String(error.message ?? error) } }));`;
      return send("POST", `${session}/execute/async`, { script, args });
    };
    return {
      open: (url) => send("POST", `${session}/url`, { url }),
      run: async (work, ...args) => {
        const { value, error } = await run(work, ...args);
        if (error) throw Object.assign(new Error(error.message), { code: error.code });
        return value;
      },
      /** Waits until a function of the page returns a value. */
      waitFor: async (work, ...args) => {
        for (;;) {
          const { value } = await run(work, ...args);
          if (value) return value;
          await new Promise((resolve) => setTimeout(resolve, 100));
        }
      },
      close: async () => {
        await send("DELETE", session).catch(() => {});
        await close();
      },
    };
  } catch (error) {
    await close();
    throw error;
  }
}
