/** The bytes of an entry of a cache, or nothing; the steps follow one another while nobody in WebAssembly looks. */
export async function readEntry(cache, key) {
  const found = await cache.match(key);
  return found && new Uint8Array(await found.arrayBuffer());
}
