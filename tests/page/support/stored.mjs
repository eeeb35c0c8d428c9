/** Models that a page has stored, as private files. */

/** Runs on the page. Afterwards `stored` lists, reads, writes and removes entries, which are named by the paths of their files. */
export function installStored() {
  const NAME = "jerboa-models-1";
  const folder = async () => (await navigator.storage.getDirectory()).getDirectoryHandle(NAME, { create: true });
  const file = async (path) => {
    const names = path.split("/");
    let found = await folder();
    for (const name of names.slice(0, -1)) found = await found.getDirectoryHandle(name);
    return found.getFileHandle(names.at(-1));
  };
  const list = async (from, path) => {
    const found = [];
    for await (const [name, handle] of from) {
      if (handle.kind === "file") found.push(path + name);
      else if (name !== "~unfinished") found.push(...(await list(handle, `${path}${name}/`)));
    }
    return found;
  };
  window.stored = {
    paths: async () => list(await folder(), ""),
    read: async (path) => (await (await file(path)).getFile()).text(),
    write: async (path, text) => {
      const stream = await (await file(path)).createWritable();
      await stream.write(text);
      await stream.close();
    },
    remove: async (path) => (await file(path)).remove(),
    clear: async () => {
      await (await navigator.storage.getDirectory()).removeEntry(NAME, { recursive: true }).catch((error) => {
        if (error.name !== "NotFoundError") throw error;
      });
    },
  };
}
