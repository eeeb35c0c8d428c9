/** The images of conversations, in the browser's cache: local storage has no room for them. */

const CACHE = "jerboa-attachments";
const address = (id: string): string => new URL(`attachments/${id}`, document.baseURI).href;

export async function putImage(id: string, blob: Blob): Promise<void> {
  const cache = await caches.open(CACHE);
  await cache.put(address(id), new Response(blob, { headers: { "content-type": blob.type } }));
}

export async function getImage(id: string): Promise<Blob | undefined> {
  const found = await (await caches.open(CACHE)).match(address(id));
  return found?.blob();
}

export async function deleteImages(ids: string[]): Promise<void> {
  const cache = await caches.open(CACHE);
  await Promise.all(ids.map((id) => cache.delete(address(id))));
}
