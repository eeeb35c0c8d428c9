/** Tests a device step by step and collects the results in one report. */

import { type DeviceCheck, diagnose, deviceReport, JerboaError, loadModel, type LoadOptions, storageReport } from "jerboa";
import golden from "./golden.json";

/** Dispatches per command buffer: see `features.group`. */
const GROUPS = ["1", "8", "64", "all", "free"] as const;
type Group = (typeof GROUPS)[number];

/** The tiny model at one group size. */
export interface GroupRun {
  group: string;
  /** Whether its tokens match the reference. */
  right: boolean;
  tokensPerSecond: number;
  promptMs: number;
  error?: string;
}

/** The complete report. */
export interface Report {
  engine: string;
  at: string;
  browser: string;
  touchPoints: number;
  memoryGb?: number;
  device?: Record<string, unknown>;
  storage?: { usage?: number; quota?: number; persisted: boolean };
  checks: DeviceCheck[];
  load?: { ms: number; worker: boolean; warnings: string[]; tuning: unknown };
  /** Checks of the loaded model. */
  model: DeviceCheck[];
  groups: GroupRun[];
  /** Step cost and device limits. */
  measured?: unknown;
  /** Options forced by the URL. */
  forced: Record<string, string>;
  errors: string[];
}

/**
 * Options that a URL may force: `?groups=8,free&worker=0&f16=0&subgroups=0&limits=least&kv=packed&force=gemv.ROWS=4`.
 */
export function forcedBy(query: URLSearchParams): { options: LoadOptions; forced: Record<string, string> } {
  const off = (name: string): false | undefined => (query.get(name) === "0" ? false : undefined);
  const text = <T extends string>(name: string): T | undefined => (query.get(name) ?? undefined) as T | undefined;
  const features = { f16: off("f16"), subgroups: off("subgroups"), limits: text<"minimum">("limits"), force: text("force") };
  const options = { worker: off("worker"), kv: text<"packed">("kv"), tune: text<"off">("tune"), features: given(features) };
  return { options: given(options), forced: Object.fromEntries(query) };
}

function given<T extends object>(options: T): { [K in keyof T]?: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as { [K in keyof T]?: Exclude<T[K], undefined> };
}

/** Tests this device. A failed step becomes part of the report. `say` receives progress messages. */
export async function test(query: URLSearchParams, say: (what: string) => void): Promise<Report> {
  const { options, forced } = forcedBy(query);
  const { deviceMemory } = navigator as { deviceMemory?: number };
  const report: Report = {
    engine: "",
    at: new Date().toISOString(),
    browser: navigator.userAgent,
    touchPoints: navigator.maxTouchPoints,
    ...(deviceMemory ? { memoryGb: deviceMemory } : {}),
    checks: [],
    model: [],
    groups: [],
    forced,
    errors: [],
  };
  const step = async (what: string, work: () => Promise<void>): Promise<boolean> => {
    say(what);
    try {
      await work();
      return true;
    } catch (thrown) {
      const { code, message } = JerboaError.from(thrown);
      report.errors.push(`${what}: ${code}: ${message}`);
      return false;
    }
  };
  await step("Querying the device", async () => {
    const device = await deviceReport();
    Object.assign(report, { device, engine: device.engine });
    const { usage, quota, persisted } = await storageReport();
    report.storage = { ...(usage === undefined ? {} : { usage }), ...(quota === undefined ? {} : { quota }), persisted };
  });
  if (!report.device) return report;
  await step("Running checks", async () => void (report.checks = await diagnose()));
  const groups = GROUPS.filter((group) => query.get("groups")?.split(",").includes(group) ?? true);
  for (const group of groups) await step(`Running a tiny model, group size ${group}`, () => runGroup(report, options, group, group === groups.at(-1)));
  return report;
}

/** Loads the tiny model at a group size and compares its tokens; the last group also runs the model checks. */
async function runGroup(report: Report, options: LoadOptions, group: Group, last: boolean): Promise<void> {
  const begun = performance.now();
  const model = await loadModel(new URL("../models/stories260K/", location.href), { ...options, features: { ...options.features, group } });
  const ms = performance.now() - begun;
  try {
    const run = () => model.generate(golden.prompt, { maxTokens: golden.ids.length, temperature: 0, ignoreEos: true }).details;
    await run();
    const { ids, decodeMs, prefillMs, completionTokens } = await run();
    const right = ids.join() === golden.ids.join();
    report.groups.push({ group, right, tokensPerSecond: Math.round(((completionTokens - 1) / Math.max(decodeMs, 0.001)) * 1000), promptMs: Math.round(prefillMs * 10) / 10 });
    if (!last) return;
    const { worker, warnings, tuning } = model.info;
    report.load = { ms: Math.round(ms), worker, warnings, tuning };
    report.model = (await model.diagnose()).filter(({ name }) => !report.checks.some((check) => check.name === name));
    report.measured = await model.measure({ limits: true, steps: 16 });
  } catch (thrown) {
    report.groups.push({ group, right: false, tokensPerSecond: 0, promptMs: 0, error: JerboaError.from(thrown).message });
  } finally {
    await model.unload();
  }
}
