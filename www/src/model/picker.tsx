/** The sheet in which a model is chosen: the bundled one, a repository, files, or one that is in the cache. */

import { useSignal } from "@preact/signals";
import { cachedModels, deleteModel, JerboaError, type CachedModel } from "jerboa";
import type { TargetedEvent, TargetedSubmitEvent } from "preact";
import { useEffect, useId } from "preact/hooks";
import { bytes } from "../format";
import { stored } from "../prefs";
import { announce } from "../ui/announce";
import { Dialog } from "../ui/dialog";
import { Icon } from "../ui/icon";
import { Advanced, advancedOptions } from "./advanced";
import type { Suggestion } from "./catalog";
import type { ModelSlot, Wanted } from "./slot";

/** The repository that was typed last. */
const typed = stored("repository", "", (v): v is string => typeof v === "string");

/** The model that comes with the page. */
export interface Bundled {
  wanted: Wanted;
  note: string;
  size: string;
}

interface Props {
  slot: ModelSlot;
  bundled: Bundled;
  suggestions: readonly Suggestion[];
  open: boolean;
  /** Shows the advanced options at once: a token is needed. */
  advanced: boolean;
  onClose: () => void;
}

export function Picker({ slot, bundled, suggestions, open, advanced, onClose }: Props) {
  const load = (wanted: Wanted): void => {
    onClose();
    void slot.load(wanted);
  };
  return (
    <Dialog open={open} title="Choose a model" onClose={onClose}>
      <section class="group">
        <button type="button" class="choice" onClick={() => load(bundled.wanted)}>
          <span class="choice-name">{bundled.wanted.label}</span>
          <span class="choice-note">{bundled.note}</span>
          <span class="choice-size">{bundled.size}</span>
        </button>
      </section>
      <Repository suggestions={suggestions} advanced={advanced} load={load} />
      <Files load={load} />
      <Cached load={load} />
    </Dialog>
  );
}

function Repository({ suggestions, advanced, load }: { suggestions: readonly Suggestion[]; advanced: boolean; load: (w: Wanted) => void }) {
  const input = useId();
  const loadNamed = (id: string): void => {
    const options = advancedOptions();
    const name = id.trim();
    // An address names its own server and revision.
    if (name.includes("://")) {
      delete options.endpoint;
      delete options.revision;
    }
    load({ source: name, label: name.replace(/\/+$/, "").split("/").slice(-2).join("/"), options });
  };
  const submit = (event: TargetedSubmitEvent<HTMLFormElement>): void => {
    event.preventDefault();
    if (typed.value.trim()) loadNamed(typed.value);
  };
  return (
    <form class="group" onSubmit={submit}>
      <label for={input}>From Hugging Face</label>
      <div class="row">
        <input
          id={input}
          type="text"
          class="grow"
          placeholder="organisation/model"
          autocomplete="off"
          autocapitalize="off"
          spellcheck={false}
          value={typed}
          onInput={(e) => (typed.value = e.currentTarget.value)}
        />
        <button type="submit" class="primary">
          Load
        </button>
      </div>
      <ul class="choices" aria-label="Suggestions">
        {suggestions.map(({ id, note, bytes: size }) => (
          <li key={id}>
            <button type="button" class="choice" onClick={() => loadNamed(id)}>
              <span class="choice-name">{id}</span>
              <span class="choice-note">{note}</span>
              <span class="choice-size">{bytes(size)}</span>
            </button>
          </li>
        ))}
      </ul>
      <Advanced open={advanced} />
    </form>
  );
}

function Files({ load }: { load: (w: Wanted) => void }) {
  const pick = (event: TargetedEvent<HTMLInputElement>): void => {
    const files = [...(event.currentTarget.files ?? [])];
    if (files.length === 0) return;
    const { maxContext, weights, embeddingWeights, kv } = advancedOptions();
    const folder = files[0]?.webkitRelativePath.split("/")[0];
    load({ source: files, label: folder || "Files on this device", options: { maxContext, weights, embeddingWeights, kv } });
  };
  return (
    <section class="group">
      <label class="file-button">
        <Icon name="file" />
        Open a model's files
        <input type="file" multiple onChange={pick} />
      </label>
      <p class="hint">config.json, tokenizer.json, tokenizer_config.json and the .safetensors files, all at once; or one .gguf file.</p>
    </section>
  );
}

function Cached({ load }: { load: (w: Wanted) => void }) {
  const models = useSignal<CachedModel[]>([]);
  const problem = useSignal("");
  const refresh = async (): Promise<void> => {
    try {
      models.value = await cachedModels();
    } catch (thrown) {
      problem.value = thrown instanceof JerboaError ? thrown.message : String(thrown);
    }
  };
  useEffect(() => void refresh(), []);
  const remove = async ({ model, revision, endpoint }: CachedModel): Promise<void> => {
    try {
      await deleteModel(model, { revision, endpoint });
      announce(`${model} was removed.`);
    } catch (thrown) {
      problem.value = thrown instanceof JerboaError ? thrown.message : String(thrown);
    }
    await refresh();
  };
  if (models.value.length === 0 && !problem.value) return null;
  return (
    <section class="group">
      <h3>On this device</h3>
      {problem.value && <p class="hint">{problem}</p>}
      <ul class="choices">
        {models.value.map((entry) => (
          <li key={entry.source} class="row">
            <button type="button" class="choice grow" onClick={() => load(wantedOf(entry))}>
              <span class="choice-name">{nameOf(entry)}</span>
              {entry.complete === false && <span class="choice-note">Not complete; loading goes on where it stopped.</span>}
              <span class="choice-size">{bytes(entry.bytes)}</span>
            </button>
            <button type="button" class="icon-button" aria-label={`Remove ${nameOf(entry)} from this device`} onClick={() => void remove(entry)}>
              <Icon name="trash" />
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}

function nameOf({ model }: CachedModel): string {
  return model.includes("://") ? model.replace(/\/+$/, "").split("/").at(-1)! : model;
}

function wantedOf(entry: CachedModel): Wanted {
  const { token, maxContext, weights, embeddingWeights, kv } = advancedOptions();
  const { model, revision, endpoint } = entry;
  return { source: model, label: nameOf(entry), options: { token, maxContext, weights, embeddingWeights, kv, revision, endpoint } };
}
