/** Renders the page into the document. */

import { render } from "preact";
import { App } from "./app";
import { language, startLanguage } from "./language";
import "./styles/index.css";

/** The page in the current language: another one renders everything anew. */
function Page() {
  return <App key={language.value} />;
}

const start = (): void => render(<Page />, document.getElementById("app")!);
const loading = startLanguage();
if (loading) void loading.then(start);
else start();

// Offline, the page loads from the service worker's cache; browsers that refuse it have no offline page.
if (import.meta.env.PROD && "serviceWorker" in navigator) navigator.serviceWorker.register("./sw.js").catch(() => {});
