/**
 * The bench page: takes settings from the form, or from its URL and starts at once. Shows the result and posts it to
 * `/result` for a listening server. `?shape=tiny&smoke=1` runs anywhere.
 */

import "../src/styles/index.css";
import "./style.css";
import { addThemeButton } from "../src/theme-button";
import { adapterInfo, refuseSoftware } from "./adapter";
import { report } from "./report";
import { bench, loadAgain, type Result } from "./run";
import { DEFAULTS, FIELD_LABELS, type Settings, settingsOf } from "./settings";
import { SHAPES } from "./shapes";

/** Session storage key of the first half of a result, while the page reloads. */
const RESULT_KEY = "jerboa.bench";

const place = (id: string): HTMLElement => document.getElementById(id)!;
const query = new URLSearchParams(location.search);
/** Whether a server drives the page: it starts at once and posts its result. */
const driven = query.size > 0;

const post = (path: string, body: string): Promise<unknown> => (driven ? fetch(path, { method: "POST", body }).catch(() => {}) : Promise.resolve());

function say(line: string): void {
  place("log").append(`${line}\n`);
  void post("/log", line);
}

function shown(result: Result): void {
  place("state").textContent = "";
  place("report").replaceChildren(report(result));
}

async function measure(settings: Settings): Promise<Result | undefined> {
  const kept = sessionStorage.getItem(RESULT_KEY);
  sessionStorage.removeItem(RESULT_KEY);
  if (kept) return { ...(JSON.parse(kept) as Result), ...(await loadAgain(settings)) };
  const adapter = await adapterInfo();
  if (!settings.smoke) refuseSoftware(adapter);
  const result = await bench(settings, say);
  if (!settings.reload) return result;
  sessionStorage.setItem(RESULT_KEY, JSON.stringify(result));
  location.reload();
  return undefined;
}

/** Runs the benchmark, shows and posts the result; an error is a result too. Removes the previous report. */
async function run(chosen: URLSearchParams): Promise<void> {
  for (const id of ["report", "log"]) place(id).replaceChildren();
  place("state").textContent = "Measuring. Keep this page in the foreground.";
  try {
    const result = await measure(settingsOf(chosen));
    if (!result) return;
    shown(result);
    Object.assign(window, { result });
    await post("/result", JSON.stringify(result));
  } catch (thrown) {
    const { code, message, stack } = thrown as { code?: string; message: string; stack?: string };
    const err = `${code ? `${code}: ` : ""}${message}`;
    place("state").textContent = err;
    Object.assign(window, { result: { err } });
    await post("/result", JSON.stringify({ engine: "jerboa", err, stack }));
  }
}

/** A form field, named as in the URL. */
function field(name: keyof typeof FIELD_LABELS, input: HTMLInputElement | HTMLSelectElement): HTMLLabelElement {
  input.name = name;
  const made = document.createElement("label");
  made.append(FIELD_LABELS[name], input);
  return made;
}

function choice(names: [value: string, label: string][], chosen: string): HTMLSelectElement {
  const select = document.createElement("select");
  select.append(...names.map(([value, label]) => new Option(label, value, false, value === chosen)));
  return select;
}

function text(value: string): HTMLInputElement {
  const input = document.createElement("input");
  input.value = value;
  input.size = 14;
  return input;
}

/** The selectable shapes; test shapes appear only when they are named. */
function shapes(chosen: string): [value: string, label: string][] {
  const all = Object.entries(SHAPES).map(([name, { label }]): [string, string] => [name, label]);
  return all.filter(([name, label]) => name === chosen || !label.includes("for tests"));
}

/** The form, with the settings of the URL. */
function form(): void {
  const { shape, stored, prompt, gen, reps } = { ...DEFAULTS, ...Object.fromEntries(query) };
  const made = place("settings") as HTMLFormElement;
  const button = document.createElement("button");
  button.textContent = "Measure";
  made.append(
    field("shape", choice(shapes(shape), shape)),
    field("stored", choice([["mlx4", "4 bits"], ["f16", "16 bits"]], stored)),
    field("prompt", text(prompt)),
    field("gen", text(gen)),
    field("reps", text(reps)),
    button,
  );
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    button.disabled = true;
    const chosen = new URLSearchParams([...new FormData(made)].map(([name, value]) => [name, String(value)]));
    for (const [name, value] of query) if (!chosen.has(name)) chosen.set(name, value);
    void run(chosen).finally(() => (button.disabled = false));
  });
}

form();
addThemeButton();
if (driven) void run(query);
