/** The engine's WebGPU binding (crate/js/gpu.js) alone in Chromium, without wasm: dispatch groups, the order of operations, lost devices. */

import assert from "node:assert/strict";
import { writeFile, mkdtemp, rm, copyFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch, warmUp } from "./support/browser.mjs";
import { ROOT } from "./support/paths.mjs";
import { serve } from "./support/server.mjs";

let folder, server, browser, page;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "jerboa-device-"));
  for (const name of ["gpu.js", "host.js"]) await copyFile(`${ROOT}/crate/js/${name}`, join(folder, name));
  await writeFile(join(folder, "index.html"), "<!doctype html><title>device</title>");
  server = await serve({ "/": folder });
  browser = await launch();
  page = await browser.newPage();
  await page.goto(server.url);
  await warmUp(page);
  await page.evaluate(async () => {
    const { JsGpu } = await import("/gpu.js");
    // Each step adds one to each of 64 numbers, from one buffer to another and back.
    const CODE = `@group(0) @binding(0) var<storage, read> a: array<u32>; @group(0) @binding(1) var<storage, read_write> b: array<u32>;
      @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) i: u32) { b[i] = a[i] + 1u; }`;
    window.scene = async (steps) => {
      const gpu = await JsGpu.open(false, false);
      const buffers = [gpu.buffer("a", 256, false), gpu.buffer("b", 256, false)];
      const uniform = gpu.buffer("uniform", 256, true);
      const [pipeline] = await gpu.compile(["add"], [CODE], [Uint32Array.of(0, 1, 1, 2)]);
      const words = Array.from({ length: steps }, (_, i) => [pipeline, 1, 1, 1, -1, 0, 0, 2, 0, buffers[i % 2], 1, buffers[1 - (i % 2)]]);
      const program = gpu.program("chain", Int32Array.from(words.flat()), uniform);
      const numbers = async (slot) => [...new Uint32Array((await gpu.read(slot, 0, 256)).buffer)];
      return { gpu, a: buffers[0], b: buffers[1], program, numbers };
    };
    window.settled = (promise) => promise.then((value) => ["done", value instanceof Uint8Array ? value.length : value], (error) => ["failed", error.message]);
  });
});

after(async () => {
  await browser?.close();
  await server?.close();
  if (folder) await rm(folder, { recursive: true, force: true });
});

test("large writes share mapped buffers, stay in order with other work, and release them", async () => {
  const found = await page.evaluate(async () => {
    const { gpu } = await scene(2);
    const MB = 1 << 20;
    const [large, copy] = [gpu.buffer("large", 80 * MB, false), gpu.buffer("copy", 16, false)];
    const bytes = new Uint8Array(72 * MB);
    const words = new Uint32Array(bytes.buffer);
    for (let i = 0; i < words.length; i++) words[i] = Math.imul(i, 2654435761);
    const { writeBuffer, submit } = gpu.queue;
    const direct = [];
    let submits = 0;
    gpu.queue.writeBuffer = (...args) => (direct.push(args[2].length - (args[3] ?? 0)), writeBuffer.apply(gpu.queue, args));
    gpu.queue.submit = (commands) => (submits++, submit.call(gpu.queue, commands));
    const equals = async (from, expected) => (await gpu.read(large, from, expected.length)).every((byte, i) => byte === expected[i]);
    // More than all mapped buffers hold: the rest is written directly.
    gpu.write(large, 4, bytes);
    const whole = [direct.splice(0), await equals(4, bytes)];
    // Many writes, small ones among them, are one submit; later ones replace earlier ones.
    submits = 0;
    for (let i = 0; i < 6; i++) gpu.write(large, i * MB, bytes.subarray(i * 8, i * 8 + MB));
    gpu.write(large, MB, new Uint8Array(8).fill(7));
    gpu.copy(large, MB, copy, 0, 16);
    gpu.write(large, MB, new Uint8Array(16).fill(9));
    const together = [submits, direct.splice(0), [...(await gpu.read(copy, 0, 16))]];
    const parts = [await equals(MB, new Uint8Array(16).fill(9)), await equals(5 * MB, bytes.subarray(40, 40 + MB))];
    // What is destroyed was written before.
    const gone = gpu.buffer("gone", MB, false);
    gpu.write(gone, 0, bytes.subarray(0, MB));
    gpu.destroy(gone);
    await gpu.idle();
    const { made } = gpu.uploads;
    gpu.uploads.release();
    const left = gpu.uploads.made;
    gpu.write(large, 0, bytes.subarray(0, MB));
    const again = await equals(0, bytes.subarray(0, MB));
    return { whole, together, expected: [...new Uint8Array(8).fill(7), ...bytes.subarray(16, 24)], parts, made, left, again, error: await gpu.takeError() };
  });
  assert.deepEqual(found.whole, [[40 << 20], true]);
  assert.deepEqual(found.together, [2, [16], found.expected]);
  assert.deepEqual(found.parts, [true, true]);
  assert.deepEqual([found.made, found.left, found.again, found.error], [4, 0, true, undefined]);
});

test("all dispatch groups give the same result, and concurrent operations stay in order", async () => {
  const found = await page.evaluate(async () => {
    const { gpu, a, b, program, numbers } = await scene(40);
    const results = [];
    for (const group of [0, 1, 8, 64, 0xffffffff, 0]) {
      gpu.group = group;
      let submits = 0;
      const { submit } = gpu.queue;
      gpu.queue.submit = (buffers) => (submits++, submit.call(gpu.queue, buffers));
      gpu.write(a, 0, new Uint8Array(256));
      gpu.run([program, program], undefined);
      // These must see the runs before them, not those after.
      gpu.copy(a, 0, b, 0, 128);
      const first = numbers(b);
      gpu.write(a, 0, new Uint8Array(256).fill(1));
      gpu.run([program], Uint32Array.from({ length: 120 }, (_, i) => (i < 3 ? 1 : i % 3 === 0 ? 0 : 1)));
      const second = numbers(b);
      await gpu.idle();
      delete gpu.queue.submit;
      const [one, two] = [await first, await second];
      results.push({ group, one: [one[0], one[31], one[32]], two: two[0], submits, error: await gpu.takeError() });
    }
    return results;
  });
  for (const { group, one, two, error } of found) {
    assert.deepEqual(one, [80, 80, 79], `group ${group}`);
    assert.equal(two, 0x01010102, `group ${group}`);
    assert.equal(error, undefined);
  }
  const submits = found.map((result) => result.submits);
  // 80 steps and one, a copy, two reads; without groups the copy goes with the read that follows it.
  assert.deepEqual(submits, [4, 84, 14, 6, 5, 4]);
});

test("new grids apply to later runs, not to queued ones", async () => {
  for (const group of [0, 1]) {
    const found = await page.evaluate(async (group) => {
      const { gpu, a, b, program, numbers } = await scene(40);
      gpu.group = group;
      gpu.run([program], undefined);
      const all = numbers(a);
      gpu.setGrids(program, Uint32Array.from({ length: 120 }, (_, i) => (i < 3 ? 1 : 0)));
      gpu.run([program, program], undefined);
      const first = numbers(b);
      gpu.setGrids(program, new Uint32Array(120).fill(1));
      gpu.run([program], undefined);
      const again = numbers(a);
      return [(await all)[0], (await first)[0], (await again)[0], await gpu.takeError()];
    }, group);
    assert.deepEqual(found, [40, 41, 80, undefined], `group ${group}`);
  }
});

test("short work is submitted with what follows it, and a step leaves time to a read", async () => {
  const found = await page.evaluate(async () => {
    const counted = async (steps) => {
      const made = await scene(steps);
      const { submit } = made.gpu.queue;
      const sizes = [];
      made.gpu.queue.submit = (buffers) => (sizes.push(buffers.length), submit.call(made.gpu.queue, buffers));
      return { ...made, sizes };
    };
    const short = await counted(3);
    short.gpu.run([short.program], undefined);
    short.gpu.copy(short.b, 0, short.a, 0, 128);
    const joined = await short.numbers(short.a);
    short.gpu.run([short.program], undefined);
    const waiting = short.sizes.length;
    await Promise.resolve();
    const alone = [...short.sizes.splice(0), waiting];
    // A write behind a short program must not reach it.
    short.gpu.run([short.program], undefined);
    short.gpu.write(short.a, 0, new Uint8Array(256));
    short.gpu.run([short.program], undefined);
    const ordered = await short.numbers(short.b);
    const long = await counted(100);
    long.gpu.run([long.program], undefined);
    const first = long.numbers(long.a);
    long.gpu.run([long.program], undefined);
    const second = long.numbers(long.a);
    const values = [(await first)[0], (await second)[0]];
    long.gpu.run([long.program], undefined);
    await long.gpu.idle();
    return { joined: [joined[0], joined[40]], alone, ordered: ordered[0], values, sizes: long.sizes, errors: [await short.gpu.takeError(), await long.gpu.takeError()] };
  });
  // Three steps leave 3 in b and 2 in a; b's first half is copied to a.
  assert.deepEqual(found.joined, [3, 2]);
  // A program, a copy and the read; then a program, submitted only when the task had ended.
  assert.deepEqual(found.alone, [3, 1, 1]);
  assert.equal(found.ordered, 3);
  assert.deepEqual(found.values, [100, 200]);
  // Whole, its read, in three parts behind a read, its read, whole.
  assert.deepEqual(found.sizes.filter((size) => size > 0), [1, 1, 1, 1, 1, 1, 1]);
  assert.deepEqual(found.errors, [undefined, undefined]);
});

test("at most two commands hurry a readback that is not answered", async () => {
  const found = await page.evaluate(async () => {
    const { gpu, numbers, a } = await scene(1);
    const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
    let unanswered = 0;
    let most = 0;
    let answered = 0;
    gpu.device.pushErrorScope = () => {};
    gpu.device.popErrorScope = () => {
      most = Math.max(most, ++unanswered);
      // The first commands of each attempt have no answer for a while.
      return pause(4).then(() => (unanswered--, answered++, null));
    };
    // A busy machine may take longer than a readback is hurried.
    for (let attempt = 0; attempt < 20 && answered < 3; attempt++) {
      answered = 0;
      let settle;
      gpu.hurry(new Promise((resolve) => (settle = resolve)));
      await pause(20);
      settle();
      await pause(20);
    }
    delete gpu.device.pushErrorScope;
    delete gpu.device.popErrorScope;
    return { most, goesOn: answered >= 3, numbers: (await numbers(a)).length };
  });
  assert.deepEqual(found, { most: 2, goesOn: true, numbers: 64 });
});

test("staging buffers are reused, up to 32 MiB", async () => {
  const found = await page.evaluate(async () => {
    const { gpu } = await scene(1);
    const MIB = 1 << 20;
    const rows = gpu.buffer("rows", 40 * MIB, false);
    // Concurrent reads: the staging buffers created for them, and the bytes retained afterwards.
    const made = async (...sizes) => {
      const before = gpu.counts.buffers;
      await Promise.all(sizes.map((size) => gpu.read(rows, 0, size)));
      return [gpu.counts.buffers - before, gpu.staged / MIB];
    };
    const results = [];
    for (const sizes of [[MIB], [MIB], [MIB - 16], [40 * MIB], [40 * MIB], Array(5).fill(8 * MIB), Array(5).fill(8 * MIB), Array(3).fill(8 * MIB), [MIB]]) results.push(await made(...sizes));
    return { results, error: await gpu.takeError() };
  });
  // Next to one of 1 MiB there is room for three of 8 MiB, and none for one above the limit.
  assert.deepEqual(found.results, [[1, 1], [0, 1], [0, 1], [1, 1], [1, 1], [5, 25], [2, 25], [0, 25], [0, 25]]);
  assert.equal(found.error, undefined);
});

test("a buffer destroyed while groups run is freed after them", async () => {
  const found = await page.evaluate(async () => {
    const { gpu, a, b, program, numbers } = await scene(9);
    gpu.group = 1;
    gpu.run([program], undefined);
    const result = numbers(b);
    gpu.dropProgram(program);
    gpu.destroy(a);
    return [(await result)[0], await gpu.takeError()];
  });
  assert.deepEqual(found, [9, undefined]);
});

test("a lost device rejects all pending operations, before and after", async () => {
  for (const group of [0, 1, 8]) {
    const found = await page.evaluate(async (group) => {
      const { gpu, a, program } = await scene(30);
      gpu.group = group;
      gpu.run([program], undefined);
      const waits = [gpu.read(a, 0, 256), gpu.idle(), gpu.compile(["late"], ["@compute @workgroup_size(1) fn main() {}"], [new Uint32Array()])];
      const outcomes = Promise.all(waits.map(settled));
      gpu.device.destroy();
      const before = await outcomes;
      gpu.run([program], undefined);
      const after = await Promise.all([gpu.read(a, 0, 256), gpu.idle()].map(settled));
      return { before, after, error: await gpu.takeError() };
    }, group);
    assert.ok(found.after.every(([how]) => how === "failed"), `group ${group}: ${JSON.stringify(found)}`);
    assert.match(found.error, /^lost:/);
    assert.equal(found.before.length, 3);
  }
});

test("a device that does not answer is declared lost", async () => {
  const found = await page.evaluate(async () => {
    const { gpu, a } = await scene(1);
    gpu.answer(new Promise(() => {})).catch(() => {});
    clearTimeout(gpu.watching);
    gpu.watching = undefined;
    const { setTimeout: real } = window;
    // Time runs faster here, and the device never answers.
    window.setTimeout = (action) => real(action, 1);
    gpu.queue.onSubmittedWorkDone = () => new Promise(() => {});
    const outcome = await settled(gpu.idle());
    window.setTimeout = real;
    return [outcome, await settled(gpu.read(a, 0, 256)), await gpu.takeError()];
  });
  assert.deepEqual(found[0][0], "failed");
  assert.match(found[0][1], /did not answer for \d+ seconds/);
  assert.equal(found[1][0], "failed");
  assert.match(found[2], /^lost:the GPU did not answer/);
});

test("late errors name the operation they belong to", async () => {
  const found = await page.evaluate(async () => {
    const { gpu } = await scene(1);
    gpu.buffer("weights of layer 7", 2 ** 50, false);
    const first = await gpu.takeError();
    const second = await gpu.takeError();
    return [first, second];
  });
  assert.match(found[0], /^(invalid|memory):weights of layer 7\n/);
  assert.equal(found[1], undefined);
});

test("refused allocations are known without a wait for other work, with what the device held", async () => {
  const found = await page.evaluate(async () => {
    const { gpu, program } = await scene(400);
    const none = [await gpu.allocations(), [...gpu.takeRefusal()]];
    const held = gpu.bytes;
    // The second pop of a buffer's scopes is that for memory.
    const refuse = (label) => {
      const { createBuffer, popErrorScope } = gpu.device;
      let pops = 0;
      gpu.device.createBuffer = (descriptor) => {
        if (descriptor.label === label) pops = 2;
        return createBuffer.call(gpu.device, descriptor);
      };
      gpu.device.popErrorScope = () => {
        const answer = popErrorScope.call(gpu.device);
        return --pops === 0 ? answer.then(() => new GPUOutOfMemoryError("injected")) : answer;
      };
    };
    refuse("large");
    for (let i = 0; i < 20; i++) gpu.run([program], undefined);
    let ready = false;
    const { onSubmittedWorkDone } = gpu.queue;
    gpu.queue.onSubmittedWorkDone = () => ((ready = true), onSubmittedWorkDone.call(gpu.queue));
    gpu.buffer("fits", 4096, false);
    gpu.buffer("large", 8192, false);
    gpu.buffer("after", 4096, false);
    const refused = await gpu.allocations();
    const waited = ready;
    const buffer = [[...gpu.takeRefusal()], await gpu.takeError(), await gpu.takeError()];
    const counted = gpu.bytes - held;
    refuse("probe");
    gpu.probe(100_000_000);
    const probe = [await gpu.allocations(), [...gpu.takeRefusal()], await gpu.takeError(), gpu.bytes - held];
    gpu.close();
    return { none, held, refused, waited, buffer, counted, probe };
  });
  const { held } = found;
  assert.deepEqual(found.none, [false, []]);
  assert.deepEqual([found.refused, found.waited, found.counted], [true, false, 16384]);
  assert.deepEqual(found.buffer, [[held + 4096, held + 12288, 0], "memory:large\ninjected", undefined]);
  const at = held + 16384;
  const step = 32 << 20;
  assert.deepEqual(found.probe.slice(0, 2), [true, [at, at + step, 1]]);
  assert.match(found.probe[2], /^memory:the KV cache\ninjected/);
  assert.equal(found.probe[3], 16384, "freed at once");
});
