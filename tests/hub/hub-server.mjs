#!/usr/bin/env node
// A simulated Hub with faults on demand, for the tests of src/hub and of the page. No dependencies.
//
//   node hub-server.mjs --root DIR [--port N] [--cdn-port N]
//
// prints one line of JSON, {"hub": "http://127.0.0.1:P", "cdn": "http://127.0.0.1:Q"}, and serves until its stdin ends
// (or forever with --stay).
//
// Files of DIR, on the hub's origin:
//   /ORG/NAME/resolve/REVISION/FILE   DIR/ORG/NAME/FILE as the Hub serves it: X-Repo-Commit, ETag; large files
//                                     (.safetensors, .gguf, .bin) answer 302 to the second origin, as LFS files do
//   /api/models/ORG/NAME/revision/REV  the names of its files, as `siblings`
//   /api/models/ORG/NAME              the same of the main branch, with sizes if ?blobs=true
//   /api/models?search=WORDS          repositories whose names have the words, with the fields of DIR/ORG/NAME/.hub.json;
//                                     `filter` (tags), `sort=downloads` and `limit` apply
//   /files/PATH                       DIR/PATH as any web server serves it: ETag, Range, no redirect
//
// Control, on the hub's origin:
//   GET  /_control/log                every request since the last reset: origin, method, path, range, status, body
//                                     bytes sent, whether it had a token
//   POST /_control/reset              clears log, faults, gates and changed files
//   POST /_control/faults             [{match, kind, ...}], in addition to earlier ones; `match` is part of the path:
//     status    answer `status` (with `retryAfter` seconds; `times` limits how often)
//     drop      close the connection after `after` bytes of body
//     short     end the body after `after` bytes, before Content-Length
//     stall     send `after` bytes and then nothing
//     slow      send `rate` bytes a second, in pieces of `piece`
//     change    after `after` bytes replace the file by `base64` and close the connection
//     noRange   ignore Range;  noEtag: neither ETag nor Last-Modified;  noLength: chunked, no Content-Length
//     noHead    answer HEAD with 403, like URLs signed for GET
//     fallback  answer 200 with a web page for missing files, like servers of single-page applications
//     flip      change a byte at `after` of the file;  portal: answer 200 with a web page for every request
//     shift     send bytes starting one later than requested, with a Content-Range that says so or (`lie`) does not
//     noContentRange  answer ranges without Content-Range;  whole: announce the range and send the whole file
//               (with `chunked` without a Content-Length)
//     gzip      compress ranges;  hang: never answer
//     noCommit  no X-Repo-Commit;  noExpose: expose no header to pages
//   POST /_control/gate               {"ORG/NAME": "token"}: 401 without a token, 403 with another one
//   POST /_control/file               {path, base64} replaces DIR/path until the reset; base64 null deletes it
//   POST /_control/repeat             {path, base64, block, size} makes a file of `size` bytes: base64, then block repeated
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createReadStream, existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { createServer } from 'node:http';
import { join, normalize } from 'node:path';
import { gzipSync } from 'node:zlib';

const argument = (name, fallback) => {
  const at = process.argv.indexOf(name);
  return at < 0 ? fallback : process.argv[at + 1];
};
const root = argument('--root', '.');
const origins = { hub: '', cdn: '' };

let log, faults, gates, changed, generation, snapshots;
function reset() {
  log = [];
  faults = [];
  gates = {};
  changed = new Map();
  generation = 0;
  snapshots = new Map();
}
reset();

const sha = (text) => createHash('sha1').update(text).digest('hex');
const commitOf = (repo) => sha(`${repo} ${[...changed.keys()].some((p) => p.startsWith(`${repo}/`)) ? generation : 0}`);

function change(path, base64) {
  // The content of a commit never changes.
  const repo = path.split('/').slice(0, 2).join('/');
  snapshots.set(commitOf(repo), new Map(changed));
  changed.set(path, typeof base64 === 'string' ? Buffer.from(base64, 'base64') : base64);
  generation += 1;
}

/** Bytes of a generated file: a beginning, then a repeated block. */
function* repeated({ start, block }, first, last) {
  for (let at = first; at <= last; ) {
    const [source, from] = at < start.length ? [start, at] : [block, (at - start.length) % block.length];
    const piece = source.subarray(from, Math.min(source.length, from + last + 1 - at));
    yield piece;
    at += piece.length;
  }
}

/** The content of a file, current or at a commit: {size, etag, modified, read(first, last)}, or null. */
function content(path, commit) {
  const clean = normalize(path).replace(/\\/g, '/');
  if (clean.startsWith('..') || clean.startsWith('/')) return null;
  const view = (commit && snapshots.get(commit)) || changed;
  if (view.has(clean)) {
    const bytes = view.get(clean);
    if (bytes === null) return null;
    if (bytes.block) {
      const read = (first, last) => repeated(bytes, first, last);
      return { size: bytes.size, etag: sha(`${clean} ${bytes.size}`), modified: new Date(1.7e12 + generation * 1000), read };
    }
    const pieces = function* (first, last) {
      for (let at = first; at <= last; at += 65536) yield bytes.subarray(at, Math.min(at + 65536, last + 1));
    };
    return { size: bytes.length, etag: sha(bytes), modified: new Date(1.7e12 + generation * 1000), read: pieces };
  }
  try {
    const file = join(root, clean);
    const stat = statSync(file);
    if (!stat.isFile()) return null;
    const read = (start, end) => createReadStream(file, { start, end, highWaterMark: 1 << 18 });
    return { size: stat.size, etag: sha(`${clean} ${stat.size} ${stat.mtimeMs}`), modified: stat.mtime, read };
  } catch {
    return null;
  }
}

/** The fault of a kind that applies to this request, counted down. */
function fault(kind, path) {
  const found = faults.find((f) => f.kind === kind && path.includes(f.match ?? '') && (f.times ?? 1e9) > 0);
  if (found && found.times !== undefined) found.times -= 1;
  return found;
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function cors(request, headers, path) {
  headers['Access-Control-Allow-Origin'] = '*';
  if (!fault('noExpose', path)) {
    headers['Access-Control-Expose-Headers'] =
      'X-Repo-Commit, X-Error-Code, X-Error-Message, ETag, Link, Accept-Ranges, Content-Range, Retry-After, X-Linked-Size, X-Linked-ETag';
  }
}

async function sendFile(request, response, entry, path, file, headers) {
  cors(request, headers, path);
  if (!fault('noEtag', path)) {
    headers.ETag = `"${file.etag}"`;
    headers['Last-Modified'] = file.modified.toUTCString();
  }
  headers['Content-Type'] = 'application/octet-stream';
  let [first, last, status] = [0, file.size - 1, 200];
  const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '');
  if (!fault('noRange', path)) {
    headers['Accept-Ranges'] = 'bytes';
    if (range && request.method === 'GET') {
      first = Number(range[1]);
      last = range[2] === '' ? last : Math.min(last, Number(range[2]));
      if (first >= file.size) {
        headers['Content-Range'] = `bytes */${file.size}`;
        entry.status = 416;
        response.writeHead(416, headers).end();
        return;
      }
      status = 206;
      headers['Content-Range'] = `bytes ${first}-${last}/${file.size}`;
    }
  }
  const length = last - first + 1;
  const shift = status === 206 && length > 1 && last + 1 < file.size ? fault('shift', path) : undefined;
  if (shift && !shift.lie) headers['Content-Range'] = `bytes ${first + 1}-${last + 1}/${file.size}`;
  if (status === 206 && fault('noContentRange', path)) delete headers['Content-Range'];
  const flip = fault('flip', path);
  if (!fault('noLength', path)) headers['Content-Length'] = length;
  const whole = status === 206 && length < file.size ? fault('whole', path) : undefined;
  const gzip = status === 206 ? fault('gzip', path) : undefined;
  if (whole || gzip) {
    const pieces = [];
    for await (const piece of file.read(whole ? 0 : first, whole ? file.size - 1 : last)) pieces.push(piece);
    const body = gzip ? gzipSync(Buffer.concat(pieces)) : Buffer.concat(pieces);
    if (gzip) headers['Content-Encoding'] = 'gzip';
    headers['Content-Length'] = body.length;
    if (whole?.chunked) delete headers['Content-Length'];
    entry.status = status;
    entry.bytes = body.length;
    response.writeHead(status, headers).end(body);
    return;
  }
  entry.status = status;
  response.writeHead(status, headers);
  if (request.method === 'HEAD' || length === 0) {
    response.end();
    return;
  }
  const cut = ['drop', 'short', 'stall', 'change'].map((kind) => fault(kind, path)).find(Boolean);
  const slow = fault('slow', path);
  const write = async (piece) => {
    entry.bytes += piece.length;
    if (slow) await sleep((piece.length / slow.rate) * 1000);
    if (response.write(piece)) return;
    const wait = new AbortController();
    await Promise.race(['drain', 'close'].map((event) => once(response, event, { signal: wait.signal }))).catch(() => {});
    wait.abort();
  };
  let left = cut ? Math.min(cut.after ?? 0, length) : length;
  let at = first;
  const from = shift ? 1 : 0;
  for await (let piece of file.read(first + from, last + from)) {
    if (flip && flip.after >= at && flip.after < at + piece.length) {
      piece = Buffer.from(piece);
      piece[flip.after - at] ^= 1;
    }
    at += piece.length;
    while (piece.length > 0 && left > 0 && !response.destroyed) {
      const now = piece.subarray(0, Math.min(left, slow ? (slow.piece ?? 16384) : piece.length));
      await write(now);
      left -= now.length;
      piece = piece.subarray(now.length);
    }
    if (left === 0 || response.destroyed) break;
  }
  if (!cut || response.destroyed) {
    response.end();
  } else if (cut.kind === 'stall') {
    // Sends nothing more and does not end the response.
  } else {
    if (cut.kind === 'change') change(cut.path, cut.base64);
    // Flushes written bytes before closing the connection.
    await sleep(30);
    if (cut.kind === 'short') response.socket?.end();
    else response.destroy();
  }
}

function refuse(request, response, entry, path, status, code, extra = {}) {
  const headers = { ...extra, 'Content-Type': 'text/plain', 'Content-Length': 0 };
  if (code) headers['X-Error-Code'] = code;
  cors(request, headers, path);
  entry.status = status;
  response.writeHead(status, headers).end();
}

/** 404, or the page that a server of a single-page application returns for every address. */
function absent(request, response, entry, path, code, extra = {}) {
  if (!fault('fallback', path)) return refuse(request, response, entry, path, 404, code, extra);
  page(request, response, entry, path);
}

function page(request, response, entry, path) {
  const text = '<!doctype html><html><body><div id="app"></div></body></html>';
  const headers = { 'Content-Type': 'text/html; charset=utf-8', 'Content-Length': text.length, ETag: `W/"${sha(text)}"` };
  cors(request, headers, path);
  entry.status = 200;
  entry.bytes = request.method === 'HEAD' ? 0 : text.length;
  response.writeHead(200, headers).end(request.method === 'HEAD' ? '' : text);
}

async function serve(origin, request, response) {
  const url = new URL(request.url, origins.hub);
  const path = decodeURIComponent(url.pathname);
  if (request.method === 'OPTIONS') {
    // The headers that the real Hub allows.
    const headers = { 'Access-Control-Allow-Methods': 'GET, HEAD', 'Access-Control-Allow-Headers': 'authorization, range' };
    cors(request, headers, path);
    response.writeHead(204, headers).end();
    return;
  }
  if (path.startsWith('/_control/')) return control(request, response, path);
  const entry = {
    origin,
    method: request.method,
    path,
    range: request.headers.range ?? null,
    authorization: request.headers.authorization !== undefined,
    status: 0,
    bytes: 0,
  };
  log.push(entry);
  const error = fault('status', path);
  if (error) {
    const extra = error.retryAfter === undefined ? {} : { 'Retry-After': error.retryAfter };
    return refuse(request, response, entry, path, error.status, null, extra);
  }
  if (fault('hang', path)) return;
  if (fault('portal', path)) return page(request, response, entry, path);
  if (request.method === 'HEAD' && fault('noHead', path)) return refuse(request, response, entry, path, 403, null);

  const repo = /^\/(?:cdn\/)?([^/]+\/[^/]+)\/resolve\/([^/]+|refs\/[^/]+\/[^/]+)\/(.+)$/.exec(path);
  if (repo) {
    const [, name, revision, file] = repo;
    const token = request.headers.authorization?.replace(/^Bearer /, '');
    if (origin === 'hub' && gates[name] !== undefined && token !== gates[name]) {
      return refuse(request, response, entry, path, token === undefined ? 401 : 403, 'GatedRepo');
    }
    const commit = /^[0-9a-f]{40}$/.test(revision) ? revision : commitOf(name);
    const known = fault('noCommit', path) ? undefined : commit;
    const headers = known && origin === 'hub' ? { 'X-Repo-Commit': known } : {};
    const found = content(`${name}/${file}`, commit);
    if (!found) return absent(request, response, entry, path, 'EntryNotFound', headers);
    if (origin === 'hub' && /\.(safetensors|gguf|bin)$/.test(file)) {
      cors(request, headers, path);
      headers.Location = `${origins.cdn}/cdn/${name}/resolve/${commit}/${file}?signature=1`;
      headers['X-Linked-Size'] = found.size;
      headers['Content-Length'] = 0;
      entry.status = 302;
      response.writeHead(302, headers).end();
      return;
    }
    return sendFile(request, response, entry, path, found, headers);
  }
  if (path === '/api/models' && origin === 'hub') return sendJson(request, response, entry, path, search(url.searchParams));
  const listed = /^\/api\/models\/([^/]+\/[^/]+)(?:\/revision\/(.+))?$/.exec(path);
  if (listed && origin === 'hub') {
    const folder = join(root, normalize(listed[1]));
    const names = existsSync(folder) ? readdirSync(folder, { recursive: true }).filter((name) => name !== FIELDS && statSync(join(folder, name)).isFile()) : [];
    if (names.length === 0) return refuse(request, response, entry, path, 404, 'RepoNotFound');
    const siblings = await Promise.all(names.map(async (rfilename) => ({ rfilename, ...(url.searchParams.has('blobs') ? await blob(listed[1], listed[2] ?? 'main', rfilename) : {}) })));
    return sendJson(request, response, entry, path, { id: listed[1], siblings });
  }
  const found = path.startsWith('/files/') ? content(path.slice('/files/'.length)) : null;
  if (!found) return absent(request, response, entry, path, null);
  return sendFile(request, response, entry, path, found, {});
}

/** The file with a repository's fields in the API. */
const FIELDS = '.hub.json';

/** Chunked, as in the Hub's API. */
function sendJson(request, response, entry, path, value) {
  const headers = { 'Content-Type': 'application/json' };
  cors(request, headers, path);
  entry.status = 200;
  response.writeHead(200, headers).end(JSON.stringify(value));
}

/** The repositories that a search finds. */
function search(params) {
  const words = (params.get('search') ?? '').toLowerCase().split(/\s+/).filter(Boolean);
  const ids = readdirSync(root, { withFileTypes: true }).filter((org) => org.isDirectory()).flatMap((org) => readdirSync(join(root, org.name)).map((name) => `${org.name}/${name}`));
  const models = ids.filter((id) => words.every((word) => id.toLowerCase().includes(word)) && statSync(join(root, id)).isDirectory()).map((id) => {
    const fields = join(root, id, FIELDS);
    return { id, ...(existsSync(fields) ? JSON.parse(readFileSync(fields, 'utf8')) : {}) };
  });
  const tagged = models.filter(({ tags = [] }) => params.getAll('filter').every((tag) => tags.includes(tag)));
  if (params.get('sort') === 'downloads') tagged.sort((a, b) => (b.downloads ?? 0) - (a.downloads ?? 0));
  return tagged.slice(0, Number(params.get('limit') ?? 100));
}

/** A large file's fields in the API: its SHA-256. */
async function blob(repo, revision, name) {
  if (!/\.(safetensors|gguf|bin)$/.test(name)) return {};
  const found = content(`${repo}/${name}`, revision);
  if (!found) return {};
  const hash = createHash('sha256');
  for await (const piece of found.size > 0 ? found.read(0, found.size - 1) : []) hash.update(piece);
  return { size: found.size, lfs: { sha256: hash.digest('hex'), size: found.size, pointerSize: 134 } };
}

async function control(request, response, path) {
  let text = '';
  for await (const piece of request) text += piece;
  const body = text === '' ? {} : JSON.parse(text);
  let answer = {};
  if (path === '/_control/log') answer = log;
  else if (path === '/_control/reset') reset();
  else if (path === '/_control/faults') faults.push(...body);
  else if (path === '/_control/gate') Object.assign(gates, body);
  else if (path === '/_control/file') change(body.path, body.base64);
  else if (path === '/_control/repeat') {
    const [start, block] = [body.base64, body.block].map((text) => Buffer.from(text, 'base64'));
    change(body.path, { start, block, size: body.size });
  }
  else answer = { error: 'unknown control' };
  response.writeHead(200, { 'Content-Type': 'application/json', 'Access-Control-Allow-Origin': '*' });
  response.end(JSON.stringify(answer));
}

async function listen(origin, port) {
  const server = createServer((request, response) => {
    response.on('error', () => {});
    serve(origin, request, response).catch((error) => {
      console.error(error);
      response.destroy();
    });
  });
  await new Promise((resolve) => server.listen(port, '127.0.0.1', resolve));
  origins[origin] = `http://127.0.0.1:${server.address().port}`;
}

await listen('hub', Number(argument('--port', 0)));
await listen('cdn', Number(argument('--cdn-port', 0)));
console.log(JSON.stringify(origins));
if (!process.argv.includes('--stay')) {
  process.stdin.resume();
  process.stdin.on('end', () => process.exit(0));
}
