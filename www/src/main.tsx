/** Renders the page into the document. */

import { render } from "preact";
import { App } from "./app";
import "./styles/index.css";

render(<App />, document.getElementById("app")!);

// Offline, the page loads from the service worker's cache; browsers that refuse it have no offline page.
if (import.meta.env.PROD && "serviceWorker" in navigator) navigator.serviceWorker.register("./sw.js").catch(() => {});
