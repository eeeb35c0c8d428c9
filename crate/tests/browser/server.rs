//! A server inside the page: `fetch` answers URLs of [`HOST`] from memory, with ranges and entity
//! tags as the storage of a Hub.

use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, RetryPolicy, Source};
use wasm_bindgen::prelude::*;

/// The origin that `fetch` answers from memory.
const HOST: &str = "https://models.test/";

#[wasm_bindgen(inline_js = r#"
const HOST = "https://models.test/";
const files = new Map();
let log = [];
let allowance = Infinity;
const network = globalThis.fetch.bind(globalThis);
const refused = () => new TypeError("the connection was cut");

globalThis.fetch = async (url, init = {}) => {
  if (!String(url).startsWith(HOST)) return network(url, init);
  if (allowance <= 0) throw refused();
  const path = String(url).slice(HOST.length);
  const bytes = files.get(path);
  if (!bytes) return new Response(null, { status: 404 });
  const headers = new Headers(init.headers);
  const range = /^bytes=(\d+)-(\d*)$/.exec(headers.get("range") ?? "");
  const start = range ? Number(range[1]) : 0;
  const end = range && range[2] ? Math.min(Number(range[2]) + 1, bytes.length) : bytes.length;
  const answer = { "content-length": String(end - start), "accept-ranges": "bytes", etag: `"${bytes.length}"` };
  if (range) answer["content-range"] = `bytes ${start}-${end - 1}/${bytes.length}`;
  const status = range ? 206 : 200;
  if (init.method === "HEAD") return new Response(null, { status: 200, headers: answer });
  let at = start;
  const body = new ReadableStream({
    pull(controller) {
      const sent = Math.min(16384, end - at, allowance);
      if (at === end) return controller.close();
      if (sent <= 0) return controller.error(refused());
      controller.enqueue(bytes.slice(at, at + sent));
      log.push([path, sent]);
      at += sent;
      allowance -= sent;
    },
  });
  return new Response(body, { status, headers: answer });
};

export const addFile = (path, bytes) => void files.set(path, bytes.slice());
export const allow = (bytes) => void (allowance = bytes);
export const sent = (path) => log.reduce((sum, [name, bytes]) => sum + (name === path ? bytes : 0), 0);
export const forget = () => void (log = []);
"#)]
extern "C" {
    #[wasm_bindgen(js_name = addFile)]
    fn add_file(path: &str, bytes: &[u8]);
    /// Cuts all connections after this many bytes.
    pub fn allow(bytes: f64);
    /// Bytes of a file that were sent since the last `forget`.
    pub fn sent(path: &str) -> f64;
    pub fn forget();
}

/// Serves a model's files and opens it.
pub async fn open(model: &str, files: &[(&str, &[u8])], cache: bool) -> Source {
    for (name, bytes) in files {
        add_file(&format!("{model}/{name}"), bytes);
    }
    reopen(model, cache).await.expect("a source")
}

/// Opens a model that is served already, with small parts and quick retries.
pub async fn reopen(model: &str, cache: bool) -> jerboa::Result<Source> {
    let name = ModelRef::parse(&format!("{HOST}{model}")).expect("a URL");
    let options = HubOptions {
        cache,
        part_size: 64 << 10,
        retry: RetryPolicy {
            attempts: 1,
            first_attempts: 1,
            base_ms: 1.0,
            ..RetryPolicy::default()
        },
        ..HubOptions::default()
    };
    Source::open(&name, &options, AbortFlag::new(), Progress::silent()).await
}
