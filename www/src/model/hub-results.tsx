/** The results of a search of the Hub. Loaded with the first search. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { bytes, parameters } from "../format";
import { HUB, LOAD } from "../strings";
import { announce } from "../ui/announce";
import { fitsDevice, modelMemory } from "./device-memory";
import { DownloadButton } from "./download-button";
import type { QueuedModel } from "./queued-models";
import { type GgufFile, ggufFiles, type HubAddress, type HubModel, memoryFor, requestFor, searchHub } from "./hub-search";
import type { LoadRequest } from "./model-store";
import { locale } from "../language";

interface Props {
  query: string;
  /** The Hub's name of the task. */
  task: string;
  address: HubAddress;
  load: (request: LoadRequest) => void;
  queued: (source: string, label: string, size?: number) => QueuedModel;
  options: () => LoadRequest["options"];
}

export default function HubResults({ query, task, address, load, queued, options }: Props) {
  const found = useSignal<HubModel[] | undefined>(undefined);
  const problem = useSignal("");
  useEffect(() => {
    const controller = new AbortController();
    found.value = undefined;
    problem.value = "";
    searchHub(query, task, address, controller.signal).then(
      (models) => {
        found.value = models;
        announce(HUB.found(models.length, query));
      },
      (thrown: unknown) => {
        if (!controller.signal.aborted) problem.value = HUB.failed((thrown as Error).message);
      },
    );
    return () => controller.abort();
  }, [query, task]);
  if (problem.value) return <p class="problem" role="alert">{problem}</p>;
  if (!found.value) return <p class="hint" role="status">{HUB.searching(query)}</p>;
  if (found.value.length === 0) return <p class="hint">{HUB.found(0, query)}</p>;
  return (
    <ul class="choices" aria-label={HUB.results(query)}>
      {found.value.map((model) => (
        <li key={model.id} class={model.gguf ? undefined : "row"}>
          {model.gguf ? (
            <Files model={model} address={address} load={load} queued={queued} options={options} />
          ) : (
            <>
              <Result model={model} pick={() => load(requestFor(model.id, undefined, options()))} />
              <DownloadButton model={() => queued(model.id, model.id, model.bytes)} />
            </>
          )}
        </li>
      ))}
    </ul>
  );
}

function Result({ model, pick, open }: { model: HubModel; pick: () => void; open?: boolean }) {
  const { id, bytes: size, gguf } = model;
  return (
    <button type="button" class="choice grow" aria-expanded={gguf ? open === true : undefined} onClick={pick}>
      <span class="choice-name">{id}</span>
      <span class="choice-note">
        {size !== undefined && <Fit size={size} />}
        <span class="choice-facts">{facts(model).join(" · ")}</span>
      </span>
      <span class="choice-size">{size === undefined ? "" : bytes(size)}</span>
    </button>
  );
}

function facts({ quantized, parameters: count, downloads, licence, gguf, gated }: HubModel): string[] {
  const words = [gguf ? "GGUF" : quantized ? HUB.quantized : "", count ? HUB.parameters(parameters(count)) : "", licence ?? HUB.noLicence, gated ? HUB.gated : "", HUB.downloads(downloads.toLocaleString(locale()))];
  return words.filter(Boolean);
}

/** Says if a model of this size fits, or is likely too large. */
function Fit({ size }: { size: number }) {
  const fits = fitsDevice(memoryFor(size));
  if (fits === undefined) return null;
  return fits ? <span class="choice-facts">{HUB.fits}</span> : <span class="choice-facts too-large">{LOAD.tooLarge(bytes(modelMemory.value?.bytes ?? 0))}</span>;
}

/** A GGUF repository, which opens to its files. */
function Files({ model, address, load, queued, options }: Pick<Props, "address" | "load" | "queued" | "options"> & { model: HubModel }) {
  const open = useSignal(false);
  const files = useSignal<GgufFile[] | undefined>(undefined);
  const problem = useSignal("");
  const toggle = (): void => {
    open.value = !open.value;
    if (!open.value || files.value) return;
    ggufFiles(model.id, address, new AbortController().signal).then(
      (listed) => (files.value = listed),
      (thrown: unknown) => (problem.value = HUB.failed((thrown as Error).message)),
    );
  };
  return (
    <>
      <Result model={model} pick={toggle} open={open.value} />
      {open.value && problem.value && <p class="problem" role="alert">{problem}</p>}
      {open.value && files.value && (
        <ul class="choices choices-inner" aria-label={HUB.filesOf(model.id)}>
          {files.value.map(({ name, bytes: size }) => (
            <li key={name} class="row">
              <button type="button" class="choice grow" onClick={() => load(requestFor(model.id, name, options()))}>
                <span class="choice-name">{name}</span>
                <span class="choice-note">
                  <Fit size={size} />
                </span>
                <span class="choice-size">{bytes(size)}</span>
              </button>
              <DownloadButton model={() => queued(`${model.id}/${name}`, `${model.id.split("/")[1]}/${name}`, size)} />
            </li>
          ))}
        </ul>
      )}
    </>
  );
}
