/** The report page: tests the device on request, or at once if its URL has `run`; shows the report for copying. */

import "../src/styles/index.css";
import "../bench/style.css";
import "./style.css";
import { addThemeButton } from "../src/theme-button";
import { type Report, test } from "./run";

const place = (id: string): HTMLElement => document.getElementById(id)!;
const query = new URLSearchParams(location.search);

function element<K extends keyof HTMLElementTagNameMap>(name: K, text = "", ...children: Node[]): HTMLElementTagNameMap[K] {
  const made = document.createElement(name);
  made.append(...(text ? [text] : []), ...children);
  return made;
}

/** A table row; failures are stated in words, not by color alone. */
function row(name: string, ok: boolean, said: string): HTMLTableRowElement {
  const state = element("td", ok ? "pass" : "fail");
  state.className = ok ? "right" : "wrong";
  return element("tr", "", element("td", name), state, element("td", said));
}

function table(title: string, rows: HTMLTableRowElement[]): Node[] {
  return rows.length > 0 ? [element("h2", title), element("table", "", element("tbody", "", ...rows))] : [];
}

function shown(report: Report): void {
  const { device, checks, model, groups, errors } = report;
  const said = (ms: number): string => `${ms.toFixed(ms < 10 ? 1 : 0)} ms`;
  const checked = [...checks, ...model].map(({ name, ok, ms, problem }) => row(name, ok, problem ?? said(ms)));
  const ran = groups.map(({ group, right, tokensPerSecond, promptMs, error }) => row(`group size ${group}`, right, error ?? `${tokensPerSecond} tokens/s, prompt ${said(promptMs)}`));
  const right = errors.length === 0 && [...checks, ...model].every(({ ok }) => ok) && groups.every((group) => group.right);
  const text = JSON.stringify(report, null, 1);
  const copy = element("button", "Copy the report");
  copy.type = "button";
  copy.addEventListener("click", () => void navigator.clipboard.writeText(text).then(() => (copy.textContent = "Copied")));
  const name = device ? [device["vendor"], device["architecture"], device["description"]].filter(Boolean).join(" ") : "No GPU";
  place("report").replaceChildren(
    element("p", `${name}: ${right ? "all checks passed." : "some checks failed. Please attach the report to an issue."}`),
    copy,
    ...table("Errors", errors.map((error) => row(error, false, ""))),
    ...table("Checks", checked),
    ...table("A tiny model, by dispatches per command buffer", ran),
    element("h2", "Report"),
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

addThemeButton();
place("begin").addEventListener("submit", (event) => {
  event.preventDefault();
  void run();
});
if (query.has("run")) void run();
