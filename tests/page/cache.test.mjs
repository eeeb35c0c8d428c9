/** The engine's JavaScript for cache entries, without a browser and without threads. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import { hashEntry } from "../../crate/js/cache.js";

/** The hash state before any byte. */
const START = Uint32Array.of(0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19);

/** A cache with one entry. */
const holding = (bytes) => ({ match: async () => bytes && { arrayBuffer: async () => bytes.slice().buffer } });

test("hashing entries in sequence equals the hash of the file", async () => {
  const file = Uint8Array.from({ length: 300_000 }, (_, i) => i * 31 + (i >> 7));
  for (const length of [0, 1, 55, 56, 63, 64, 65, 119, 120, 128, 6400, 6401, 300_000]) {
    for (const part of [64, 6400, 1 << 20]) {
      if (length > 100 * part) continue;
      let state = START;
      for (let at = 0; at === 0 || at < length; at += part) {
        const bytes = file.subarray(at, Math.min(at + part, length));
        state = await hashEntry(holding(bytes), "name", "key", state, bytes.length, at + part >= length ? length : undefined);
      }
      const found = [...state].map((word) => word.toString(16).padStart(8, "0")).join("");
      assert.equal(found, createHash("sha256").update(file.subarray(0, length)).digest("hex"), `${length} bytes by ${part}`);
    }
  }
});

test("a missing entry, or one of the wrong length, has no hash", async () => {
  assert.equal(await hashEntry(holding(undefined), "name", "key", START, 64), undefined);
  assert.equal(await hashEntry(holding(new Uint8Array(63)), "name", "key", START, 64), undefined);
});
