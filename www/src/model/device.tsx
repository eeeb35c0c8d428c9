/** The device sheet: WebGPU capabilities, and what the loaded model uses. */

import { useSignal } from "@preact/signals";
import { deviceReport, JerboaError, type DeviceReport } from "jerboa";
import { useEffect } from "preact/hooks";
import { bytes } from "../format";
import { CopyButton } from "../ui/copy";
import { Dialog } from "../ui/dialog";
import { DEVICE, TOOLBAR } from "../strings";
import type { ReadyModel } from "./model-store";
import { locale } from "../language";

export function DeviceSheet({ open, onClose, ready }: { open: boolean; onClose: () => void; ready: ReadyModel | undefined }) {
  return (
    <Dialog open={open} title={TOOLBAR.device} onClose={onClose} side>
      <Report ready={ready} />
    </Dialog>
  );
}

function Report({ ready }: { ready: ReadyModel | undefined }) {
  const model = ready?.model;
  const report = useSignal<DeviceReport | undefined>(undefined);
  const problem = useSignal("");
  useEffect(() => {
    deviceReport().then(
      (value) => (report.value = value),
      (thrown) => (problem.value = thrown instanceof JerboaError ? thrown.message : String(thrown)),
    );
  }, []);
  const all = (): Record<string, unknown> => ({ device: report.value, model: model?.info, browser: navigator.userAgent });
  return (
    <>
      {ready && (
        <section class="group">
          <h3>{DEVICE.model}</h3>
          <Table value={modelRows(ready)} />
        </section>
      )}
      {model?.info.warnings.map((warning) => (
        <p key={warning} class="hint">
          {warning}
        </p>
      ))}
      <section class="group">
        <h3>GPU</h3>
        {problem.value ? <p role="alert">{problem}</p> : report.value ? <Table value={deviceRows(report.value)} /> : <p class="muted">{DEVICE.querying}</p>}
      </section>
      <CopyButton small label={DEVICE.copy} text={() => JSON.stringify(all(), null, 2)} />
    </>
  );
}

/** The main GPU properties in words; the copied report has all of them unchanged. */
function deviceRows(report: DeviceReport): Record<string, unknown> {
  const number = (name: string): number | undefined => (typeof report[name] === "number" ? (report[name] as number) : undefined);
  const size = (name: string): string | undefined => (number(name) === undefined ? undefined : bytes(number(name)!));
  const [least, most] = Array.isArray(report["subgroup_size"]) ? (report["subgroup_size"] as number[]) : [];
  const rows: Record<string, unknown> = {
    GPU: [report.vendor, report.architecture].filter(Boolean).join(" ") || undefined,
    "description": report.description,
    "software renderer": report.software ? "yes (runs on the CPU)" : undefined,
    "half precision (f16)": report.f16,
    subgroups: report.subgroups ? (least === most ? `of ${least}` : `of ${least} to ${most}`) : report.subgroups,
    "memory for models (estimate)": size("memory"),
    "largest buffer": size("max_buffer_size"),
    "workgroup memory": number("max_workgroup_storage") && `${number("max_workgroup_storage")! / 1024} KiB`,
    "Safari's implementation": report["webkit"] ? "yes" : undefined,
    engine: report.engine,
  };
  return Object.values(rows).some((value) => value !== undefined) ? rows : { ...report };
}

function modelRows({ wanted, model: { info } }: ReadyModel): Record<string, unknown> {
  return {
    name: wanted.label,
    architecture: info.architecture,
    weights: `${info.weights}, ${bytes(info.bytes?.weights ?? 0)}`,
    "KV cache": info.kv ? `${info.kv}, ${bytes(info.bytes?.kv ?? 0)}` : undefined,
    activations: bytes(info.bytes?.activations ?? 0),
    context: `${info.contextLength} tokens`,
    thread: info.worker ? "dedicated worker" : "the page's own",
  };
}

/** Renders an object as rows; nested objects as row groups. */
function Table({ value }: { value: Record<string, unknown> }) {
  return (
    <dl class="table">
      {Object.entries(value).map(([name, entry]) =>
        entry === undefined || entry === null || entry === "" ? null : (
          <div key={name}>
            <dt>{words(name)}</dt>
            <dd>{cell(entry)}</dd>
          </div>
        ),
      )}
    </dl>
  );
}

function cell(entry: unknown) {
  if (Array.isArray(entry)) return entry.length === 0 ? "none" : entry.every((e) => typeof e !== "object") ? entry.join(", ") : JSON.stringify(entry);
  if (typeof entry === "object" && entry !== null) return <Table value={entry as Record<string, unknown>} />;
  if (typeof entry === "boolean") return entry ? "yes" : "no";
  return typeof entry === "number" ? entry.toLocaleString(locale()) : String(entry);
}

/** Splits camelCase and snake_case into words. */
function words(name: string): string {
  if (/^[a-z0-9]+(_[a-z0-9]+)+$/.test(name)) return name.replaceAll("_", " ");
  return /^[a-z]+([A-Z][a-z0-9]*)+$/.test(name) ? name.replace(/([A-Z])/g, " $1").toLowerCase() : name;
}
