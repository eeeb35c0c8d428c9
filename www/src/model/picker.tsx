/** The model picker: the bundled model, a repository, files, or a cached model. */

import { signal, useSignal } from "@preact/signals";
import { deleteModel, storageReport, type CachedModel } from "jerboa";
import type { ComponentProps, ComponentType, TargetedEvent, TargetedSubmitEvent } from "preact";
import { useEffect, useId } from "preact/hooks";
import { asError, capital } from "../errors";
import { bytes } from "../format";
import { stored } from "../prefs";
import { HUB, IN_USE, LOAD, NOTES, PICKER, STORAGE } from "../strings";
import { announce } from "../ui/announce";
import { Dialog } from "../ui/dialog";
import { refocus } from "../ui/focus";
import { Icon } from "../ui/icon";
import { Advanced, advancedOptions } from "./advanced";
import { cached, cachedProblem, refreshCached } from "./cached";
import { DownloadButton } from "./download-button";
import { downloadsView, resumeDownloads } from "./download-queue";
import { dequeue, type QueuedModel } from "./queued-models";
import type { Suggestion } from "./catalog";
import { expectedRate } from "./decode-rate";
import { fitsDevice, queryModelMemory, modelMemory } from "./device-memory";
import type HubResultsView from "./hub-results";
import { InUse } from "./in-use";
import type { ModelSlot, LoadRequest } from "./model-store";

/** The repository entered last. */
const typed = stored("repository", "", (v): v is string => typeof v === "string");

/** The model bundled with the page. */
export interface Bundled {
  wanted: LoadRequest;
  note: string;
  size: string;
}

interface Props {
  slot: ModelSlot;
  bundled?: Bundled;
  suggestions: readonly Suggestion[];
  /** The Hub's name of the tab's task, for searches. */
  task: string;
  open: boolean;
  /** Opens the advanced options, because a token is needed. */
  advanced: boolean;
  onClose: () => void;
}

export function Picker({ slot, bundled, suggestions, task, open, advanced, onClose }: Props) {
  const load = (wanted: LoadRequest): void => {
    onClose();
    if (typeof wanted.source === "string") dequeue({ source: wanted.source, options: wanted.options });
    void slot.load(wanted);
  };
  const source = slot.current.value?.wanted.source;
  const current = typeof source === "string" ? source : "";
  useEffect(() => {
    if (!open) return;
    queryModelMemory();
    if (!cached.value) void refreshCached();
    void resumeDownloads();
  }, [open]);
  const queued = (source: string, label: string, size?: number): QueuedModel => {
    const { token: _, ...options } = advancedOptions();
    const { codec } = slot.more();
    return { source, label, bytes: size, options: codec === undefined ? options : { ...options, codec } };
  };
  return (
    <Dialog open={open} title={PICKER.title} onClose={onClose}>
      <InUse slot={slot} onClose={onClose} />
      {downloadsView.value && <downloadsView.value />}
      <Cached load={load} current={current} bundled={bundled?.wanted.source} />
      {bundled && (
        <section class="group">
          <button type="button" class="choice" aria-current={current === bundled.wanted.source ? "true" : undefined} onClick={() => load(bundled.wanted)}>
            <span class="choice-name">{bundled.wanted.label}</span>
            <span class="choice-note">{bundled.note}</span>
            <span class="choice-size">{bundled.size}</span>
          </button>
        </section>
      )}
      <Repository suggestions={suggestions} task={task} advanced={advanced} load={load} queued={queued} current={current} />
      <Files load={load} />
    </Dialog>
  );
}

interface RepositoryProps {
  suggestions: readonly Suggestion[];
  task: string;
  advanced: boolean;
  load: (w: LoadRequest) => void;
  /** The entry of the download queue for a model. */
  queued: (source: string, label: string, size?: number) => QueuedModel;
  current: string;
}

const HUB_URL = "https://huggingface.co/";

/** What was typed or pasted, as a model name or a URL: links to the Hub need no scheme, and names may end with a slash. */
function normalized(text: string): string {
  const name = text.trim();
  const [, path] = /^(?:https?:\/\/)?(?:www\.)?(?:huggingface|hf)\.co\/(.+?)\/*$/i.exec(name) ?? [];
  if (path) return HUB_URL + path;
  return name.includes("://") ? name : name.replace(/\/+$/, "");
}

/** The label of a model: `org/name`, or a .gguf file after its repository; of other URLs, the last two segments. */
function labelOf(name: string): string {
  if (!name.startsWith(HUB_URL)) return name.replace(/\/+$/, "").split("/").slice(-2).join("/");
  // org/name/tree/REVISION or org/name/blob/REVISION/FILE.
  const [org, repository, , , ...file] = name.slice(HUB_URL.length).replace(/[?#].*$/, "").split("/");
  return file.at(-1)?.endsWith(".gguf") ? `${repository}/${file.at(-1)}` : `${org}/${repository}`;
}

/** The problem with a model name; empty if it is valid. */
function wrong(name: string): string {
  if (name.startsWith(HUB_URL)) return /^[\w.-]+\/[\w.-]+/.test(name.slice(HUB_URL.length)) ? "" : PICKER.badName;
  if (name.includes("://")) return URL.canParse(name) ? "" : PICKER.badUrl;
  return /^[\w.-]+\/[\w.-]+(@[\w./-]+)?(\/[^\s]+)?$/.test(name) ? "" : PICKER.badName;
}

/** The results of a search, once it was used. */
const hubResults = signal<ComponentType<ComponentProps<typeof HubResultsView>> | undefined>(undefined);

function Repository({ suggestions, task, advanced, load, queued, current }: RepositoryProps) {
  const input = useId();
  const problem = useSignal("");
  const query = useSignal("");
  const search = (): void => {
    query.value = typed.value.trim();
    problem.value = query.value ? "" : HUB.empty;
    if (!query.value) return document.getElementById(input)?.focus();
    import("./hub-results").then(
      ({ default: view }) => (hubResults.value = view),
      (thrown: unknown) => (problem.value = HUB.failed(String(thrown))),
    );
  };
  const loadNamed = (name: string): void => {
    const options = advancedOptions();
    // A URL names its own server and revision.
    if (name.includes("://")) {
      delete options.endpoint;
      delete options.revision;
    }
    load({ source: name, label: labelOf(name), options });
  };
  const submit = (event: TargetedSubmitEvent<HTMLFormElement>): void => {
    event.preventDefault();
    const name = normalized(typed.value);
    problem.value = name ? wrong(name) : PICKER.noName;
    if (!problem.value) loadNamed(name);
    else document.getElementById(input)?.focus();
  };
  return (
    <form class="group" onSubmit={submit}>
      <label for={input}>{PICKER.hub}</label>
      <div class="row row-wrap">
        <input
          id={input}
          type="text"
          class="grow hub-name"
          placeholder={PICKER.placeholder}
          aria-invalid={problem.value ? "true" : undefined}
          aria-describedby={problem.value ? `${input}-problem` : undefined}
          autocomplete="off"
          autocapitalize="off"
          spellcheck={false}
          value={typed}
          onInput={(e) => (typed.value = e.currentTarget.value)}
        />
        <div class="row hub-actions">
          <button type="button" class="secondary" onClick={search}>
            {HUB.search}
          </button>
          <button type="submit" class="primary">
            {PICKER.load}
          </button>
        </div>
      </div>
      {problem.value && (
        <p id={`${input}-problem`} class="problem" role="alert">
          {problem}
        </p>
      )}
      {query.value && hubResults.value && (
        <>
          <hubResults.value query={query.value} task={task} address={advancedOptions()} load={load} queued={queued} options={advancedOptions} />
          <button type="button" class="quiet-button" onClick={() => (query.value = "")}>
            {HUB.back}
          </button>
        </>
      )}
      {!query.value && (
        <ul class="choices" aria-label={PICKER.suggestions}>
          {suggestions.map(({ id, name, parameters, note, bytes: size, memory, bits, licence }) => (
            <li key={id} class="row">
              <button type="button" class="choice grow" aria-current={current === id ? "true" : undefined} onClick={() => loadNamed(id)}>
                <span class="choice-name">{name}</span>
                <span class="choice-note">
                  {NOTES[note] ?? note}
                  {fitsDevice(memory) === false && <span class="choice-facts too-large">{LOAD.tooLarge(bytes(modelMemory.value?.bytes ?? 0))}</span>}
                  <span class="choice-facts">{[HUB.parameters(parameters), PICKER.bits(bits), IN_USE.memory(bytes(memory)), licence, ...downloadTime(size)].join(" · ")}</span>
                </span>
                <span class="choice-size">{bytes(size)}</span>
              </button>
              <DownloadButton model={() => queued(id, name, size)} />
            </li>
          ))}
        </ul>
      )}
      <Advanced open={advanced} />
    </form>
  );
}

/** The estimated speed on this device, once it has been measured. */
function downloadTime(size: number): string[] {
  const tokens = expectedRate(size);
  return tokens ? [PICKER.speed(String(tokens))] : [];
}

/** False on phones, whose file pickers have no folders. */
const PICKS_FOLDERS = typeof HTMLInputElement !== "undefined" && "webkitdirectory" in HTMLInputElement.prototype;

function Files({ load }: { load: (w: LoadRequest) => void }) {
  const pick = (event: TargetedEvent<HTMLInputElement>): void => {
    const files = [...(event.currentTarget.files ?? [])];
    if (files.length === 0) return;
    const { maxContext, weights, embeddingWeights, kv } = advancedOptions();
    const folder = files[0]?.webkitRelativePath.split("/")[0];
    load({ source: files, label: folder || PICKER.ownFiles, options: { maxContext, weights, embeddingWeights, kv } });
  };
  return (
    <section class="group">
      <label class="file-button">
        <Icon name="file" />
        {PICKER.openFiles}
        <input type="file" multiple onChange={pick} />
      </label>
      {PICKS_FOLDERS && (
        <label class="file-button">
          <Icon name="folder" />
          {PICKER.openFolder}
          <input type="file" ref={(input) => void (input && (input.webkitdirectory = true))} onChange={pick} />
        </label>
      )}
      <p class="hint">{PICKER.filesHint}</p>
    </section>
  );
}

interface CachedProps {
  load: (w: LoadRequest) => void;
  current: string;
  /** The bundled model, which has an entry of its own. */
  bundled: LoadRequest["source"] | undefined;
}

function Cached({ load, current, bundled }: CachedProps) {
  const problem = useSignal("");
  const remove = async ({ model, revision, endpoint }: CachedModel): Promise<void> => {
    try {
      await deleteModel(model, { ...(revision ? { revision } : {}), ...(endpoint ? { endpoint } : {}) });
      announce(STORAGE.removed(model));
    } catch (thrown) {
      problem.value = capital(asError(thrown).message);
    }
    await refreshCached();
    refocus("dialog[open] .sheet-head button");
  };
  const models = (cached.value ?? []).filter(({ model }) => model !== bundled);
  const room = useSignal("");
  useEffect(() => {
    void storageReport().then(({ usage = 0, quota }) => (room.value = quota ? bytes(Math.max(0, quota - usage)) : ""));
  }, [cached.value]);
  const removeAll = async (): Promise<void> => {
    if (!confirm(STORAGE.confirm(models.length))) return;
    for (const entry of models) await remove(entry);
  };
  const said = problem.value || cachedProblem.value;
  if (models.length === 0 && !said) return null;
  return (
    <section class="group">
      <div class="row">
        <h3 class="grow">{STORAGE.title}</h3>
        <span class="hint">{STORAGE.total(bytes(models.reduce((sum, each) => sum + each.bytes, 0)), room.value)}</span>
      </div>
      {said && <p class="hint" dir="auto">{said}</p>}
      <ul class="choices">
        {models.map((entry) => (
          <li key={entry.source} class="row">
            <button type="button" class="choice grow" aria-current={entry.model === current ? "true" : undefined} onClick={() => load(cachedWanted(entry))}>
              <span class="choice-name">{nameOf(entry)}</span>
              {entry.complete === false && <span class="choice-note">{STORAGE.incomplete}</span>}
              <span class="choice-size">{bytes(entry.bytes)}</span>
            </button>
            <button type="button" class="icon-button" aria-label={STORAGE.remove(nameOf(entry))} onClick={() => void remove(entry)}>
              <Icon name="trash" />
            </button>
          </li>
        ))}
      </ul>
      {models.length > 1 && (
        <button type="button" class="quiet-button" onClick={() => void removeAll()}>
          {STORAGE.removeAll}
        </button>
      )}
    </section>
  );
}

function nameOf({ model }: CachedModel): string {
  return model.includes("://") ? model.replace(/\/+$/, "").split("/").at(-1)! : model;
}

function cachedWanted(entry: CachedModel): LoadRequest {
  const { token, maxContext, weights, embeddingWeights, kv } = advancedOptions();
  const { model, revision, endpoint } = entry;
  return { source: model, label: nameOf(entry), options: { token, maxContext, weights, embeddingWeights, kv, revision, endpoint } };
}
