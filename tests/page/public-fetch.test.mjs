/** The fetch of servers for URLs that their clients name: which addresses it refuses, also behind names and redirects. */

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, test } from "node:test";
import { buildFacade } from "./support/facade.mjs";

const options = { timeout: 120_000 };
let facade, createPublicFetch, isPublicAddress;

before(async () => {
  facade = await buildFacade();
  ({ createPublicFetch, isPublicAddress } = await import(`${facade.url}/node-public-fetch.js`));
}, options);

after(() => facade?.remove());

/** A server of this machine. */
async function listen(handler) {
  const server = createServer(handler);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const close = () => {
    server.closeAllConnections();
    server.close();
  };
  return { url: `http://127.0.0.1:${server.address().port}`, close };
}

test("addresses of the public internet pass, special and mapped ones do not", () => {
  for (const address of ["1.1.1.1", "93.184.215.14", "172.15.0.1", "172.32.0.1", "192.169.0.1", "223.255.255.255", "2606:4700:4700::1111", "2a00:1450:4001:80b::200e"]) assert.ok(isPublicAddress(address), address);
  for (const address of [
    "0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.255.0.9", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.168.1.1", "198.18.0.1", "224.0.0.1", "255.255.255.255",
    "::", "::1", "::ffff:1.1.1.1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2001::1", "2002:7f00:1::", "2001:db8::1", "fc00::1", "fd00:ec2::254", "fe80::1", "ff02::1", "name",
  ]) assert.ok(!isPublicAddress(address), address);
});

test("private addresses are refused before a connection, in every spelling", options, async () => {
  const publicFetch = createPublicFetch();
  let connections = 0;
  const server = await listen(() => connections++);
  const { port } = new URL(server.url);
  try {
    for (const host of ["127.0.0.1", "127.1", "0x7f000001", "2130706433", "017700000001", "localhost", "LOCALHOST", "[::1]", "[::ffff:7f00:1]", "0"]) {
      await assert.rejects(publicFetch(`http://${host}:${port}/`), (error) => error.code === "request" && /private or local address/.test(error.message), host);
    }
    assert.equal(connections, 0);
  } finally {
    server.close();
  }
});

test("redirects are followed, and refused where they lead to a private address or to another kind of URL", options, async () => {
  const reached = [];
  // Every address of this machine counts as public until a redirect leads to the other server.
  let isPublic = true;
  const internal = await listen((request, response) => {
    reached.push(request.url);
    response.end("secret");
  });
  const outside = await listen((request, response) => {
    const target = request.url === "/loop" ? "/loop" : new URL(request.url, "http://x").searchParams.get("to");
    if (!target) return void response.writeHead(200, { "content-type": "image/png" }).end("pixels");
    isPublic = !target.includes(new URL(internal.url).port);
    response.writeHead(302, { location: target }).end();
  });
  const publicFetch = createPublicFetch(() => isPublic);
  const through = (target) => {
    isPublic = true;
    return publicFetch(`${outside.url}/?to=${encodeURIComponent(target)}`);
  };
  try {
    const found = await through("/image");
    assert.deepEqual([found.status, found.headers.get("content-type"), await found.text()], [200, "image/png", "pixels"]);
    for (const target of [`${internal.url}/latest/meta-data`, internal.url.replace("127.0.0.1", "localhost")]) await assert.rejects(through(target), { code: "request" });
    await assert.rejects(through("file:///etc/passwd"), /a redirect leads to a file: URL/);
    await assert.rejects(through("/loop"), /redirects in a loop/);
    assert.deepEqual(reached, []);
  } finally {
    internal.close();
    outside.close();
  }
});

test("an abort ends the request", options, async () => {
  const server = await listen(() => {});
  const controller = new AbortController();
  const waiting = createPublicFetch(() => true)(server.url, { signal: controller.signal });
  setTimeout(() => controller.abort(), 50);
  try {
    await assert.rejects(waiting, { name: "AbortError" });
  } finally {
    server.close();
  }
});
