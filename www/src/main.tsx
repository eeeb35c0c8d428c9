/** Puts the page into the document. */

import { render } from "preact";
import { App } from "./app";
import "./styles/index.css";

render(<App />, document.getElementById("app")!);

// Offline the page opens from what it keeps; a browser that refuses just has no such page.
if (import.meta.env.PROD && "serviceWorker" in navigator) navigator.serviceWorker.register("./sw.js").catch(() => {});
