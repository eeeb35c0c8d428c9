/** The report page: tests the device when asked, or at once where its address says `run`; shows what came of it and gives it to copy. */

import "../src/styles/index.css";
import "../bench/style.css";
import "./style.css";
import { type Report, test } from "./run";

const place = (id: string): HTMLElement => document.getElementById(id)!;
const query = new URLSearchParams(location.search);

function element<K extends keyof HTMLElementTagNameMap>(name: K, text = "", ...children: Node[]): HTMLElementTagNameMap[K] {
  const made = document.createElement(name);
  made.append(...(text ? [text] : []), ...children);
  return made;
}

/** A row of a table; what is wrong says so in words, not by color alone. */
function row(name: string, ok: boolean, said: string): HTMLTableRowElement {
  const state = element("td", ok ? "right" : "wrong");
  state.className = ok ? "right" : "wrong";
  return element("tr", "", element("td", name), state, element("td", said));
}

function table(title: string, rows: HTMLTableRowElement[]): Node[] {
  return rows.length > 0 ? [element("h2", title), element("table", "", element("tbody", "", ...rows))] : [];
}

function shown(report: Report): void {
  const { device, checks, model, groups, errors } = report;
  const said = (ms: number): string => `${ms.toFixed(ms < 10 ? 1 : 0)} ms`;
  const checked = [...checks, ...model].map(({ name, ok, ms, fault }) => row(name, ok, fault ?? said(ms)));
  const ran = groups.map(({ group, right, tokensPerSecond, promptMs, error }) => row(`groups of ${group}`, right, error ?? `${tokensPerSecond} tokens a second, prompt ${said(promptMs)}`));
  const right = errors.length === 0 && [...checks, ...model].every(({ ok }) => ok) && groups.every((group) => group.right);
  const text = JSON.stringify(report, null, 1);
  const copy = element("button", "Copy the report");
  copy.type = "button";
  copy.addEventListener("click", () => void navigator.clipboard.writeText(text).then(() => (copy.textContent = "Copied")));
  const name = device ? [device["vendor"], device["architecture"], device["description"]].filter(Boolean).join(" ") : "No GPU";
  place("report").replaceChildren(
    element("p", `${name}: ${right ? "everything came out right." : "something went wrong here. Please send the report."}`),
    copy,
    ...table("Errors", errors.map((error) => row(error, false, ""))),
    ...table("Computations", checked),
    ...table("A tiny model, by how many kernels go into one command buffer", ran),
    element("h2", "The report"),
    element("pre", text),
  );
}

async function run(): Promise<void> {
  const button = place("begin").querySelector("button")!;
  button.disabled = true;
  const report = await test(query, (what) => (place("state").textContent = `${what}…`));
  place("state").textContent = "";
  shown(report);
  Object.assign(window, { result: report });
  button.disabled = false;
}

place("begin").addEventListener("submit", (event) => {
  event.preventDefault();
  void run();
});
if (query.has("run")) void run();
