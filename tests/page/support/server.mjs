/** A static server with Range and ETag for pages under test; records its requests. */

import { createReadStream } from "node:fs";
import { readFile, stat } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { gzipSync } from "node:zlib";
import { asked, recordKernel, REPORT_PATH, REPORT_SCRIPT } from "./kernels.mjs";

const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".mjs": "text/javascript",
  ".css": "text/css",
  ".json": "application/json",
  ".wasm": "application/wasm",
  ".svg": "image/svg+xml",
};

/** File types that hosts compress. */
const PACKED = new Set([".html", ".js", ".css", ".json", ".svg", ".wasm"]);

/**
 * Serves folders by mount path, with additional headers: `{ "/": folder, "/models/": other }`; the longest match wins. `gzip` compresses whole
 * files, as hosts do.
 */
export async function serve(mounts, more = {}, { gzip = false } = {}) {
  const requests = [];
  const server = createServer((request, response) => {
    const path = decodeURIComponent(new URL(request.url, "http://x").pathname);
    if (path === REPORT_PATH) return void listen(request, response);
    const entry = { method: request.method, path, status: 0 };
    requests.push(entry);
    response.on("close", () => (entry.status = response.statusCode));
    answer(mounts, more, gzip, path, request, response).catch(() => response.destroy());
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  return {
    url: `http://127.0.0.1:${port}`,
    /** The requests so far: `{ method, path, status }`. */
    requests,
    close: () => {
      server.closeAllConnections();
      return new Promise((resolve) => server.close(resolve));
    },
  };
}

async function listen(request, response) {
  let name = "";
  for await (const part of request) name += part;
  recordKernel(name);
  response.writeHead(204).end();
}

/** A file as pages get it: scripts that create pipelines report their kernels if requested. */
async function read(file) {
  const data = await readFile(file);
  return asked && extname(file) === ".js" && data.includes("createComputePipelineAsync") ? Buffer.concat([Buffer.from(REPORT_SCRIPT), data]) : data;
}

async function answer(mounts, more, gzip, path, request, response) {
  const mount = Object.keys(mounts)
    .filter((m) => path.startsWith(m))
    .sort((a, b) => b.length - a.length)[0];
  const relative = normalize(`/${path.slice(mount?.length ?? 0)}`);
  const file = mount === undefined ? undefined : join(mounts[mount], relative.endsWith("/") ? `${relative}index.html` : relative);
  const info = file && (await stat(file).catch(() => undefined));
  if (!info?.isFile()) return void response.writeHead(404, more).end();
  const etag = `"${info.size}-${info.mtimeMs}"`;
  const headers = { "Content-Type": TYPES[extname(file)] ?? "application/octet-stream", "Accept-Ranges": "bytes", ETag: etag, "Cache-Control": "no-cache", ...more };
  const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "");
  const start = range ? Number(range[1]) : 0;
  const end = range && range[2] !== "" ? Math.min(Number(range[2]), info.size - 1) : info.size - 1;
  if (range && start >= info.size) return void response.writeHead(416, { "Content-Range": `bytes */${info.size}` }).end();
  if (!range && request.headers["if-none-match"] === etag) return void response.writeHead(304, headers).end();
  if (range) headers["Content-Range"] = `bytes ${start}-${end}/${info.size}`;
  if (gzip && !range && request.method === "GET" && PACKED.has(extname(file)) && /gzip/.test(request.headers["accept-encoding"] ?? "")) {
    const packed = gzipSync(await read(file));
    return void response.writeHead(200, { ...headers, "Content-Encoding": "gzip", "Content-Length": packed.length }).end(packed);
  }
  if (asked && !range && request.method === "GET" && extname(file) === ".js") {
    const data = await read(file);
    return void response.writeHead(200, { ...headers, "Content-Length": data.length }).end(data);
  }
  response.writeHead(range ? 206 : 200, { ...headers, "Content-Length": info.size === 0 ? 0 : end - start + 1 });
  if (request.method === "HEAD" || info.size === 0) return void response.end();
  createReadStream(file, { start, end }).pipe(response);
}
