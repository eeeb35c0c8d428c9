/** Requests a page's first adapter. */

const RETRIES = 25;
const PAUSE_MS = 400;

/** Retries while the browser's GPU process starts, when the first requests may fail; null if all fail. */
export async function firstAdapter() {
  for (let attempt = 0; attempt < RETRIES; attempt++) {
    const adapter = await navigator.gpu?.requestAdapter({ powerPreference: "high-performance" }).catch(() => null);
    if (adapter) return adapter;
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
  return null;
}
