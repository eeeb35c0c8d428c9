/** The Embedding tab: a model that makes vectors, documents, a search by meaning, and a picture of it. */

import { useSignal, useSignalEffect } from "@preact/signals";
import { cachedModels, type Model } from "jerboa";
import { useEffect } from "preact/hooks";
import { bytes, parameters } from "../format";
import { EMBEDDING_SUGGESTIONS, ENCODER, MINILM } from "../model/catalog";
import { Picker } from "../model/picker";
import { ModelSlot } from "../model/slot";
import { Failed, Loading } from "../model/status";
import { Icon } from "../ui/icon";
import { Notice } from "../ui/notice";
import { Documents } from "./documents";
import { Library } from "./library";
import { Picture } from "./picture-view";
import { Search } from "./search";

// Outside the component: changing tabs leaves the model and what was found as they are.
const slot = new ModelSlot();
const library = new Library();
let opened: Model | undefined;

export function EmbeddingTab() {
  const sheet = useSignal<"none" | "model" | "token">("none");
  const state = slot.state.value;

  useEffect(() => {
    if (slot.state.peek().kind === "empty") void first();
  }, []);
  useSignalEffect(() => {
    const model = slot.model.value;
    if (model === opened) return;
    opened = model;
    if (model?.info.task === "embed") void library.open(model);
    else void library.close();
  });
  const choose = (advanced: boolean): void => void (sheet.value = advanced ? "token" : "model");
  return (
    <div class="chat">
      <div class="toolbar toolbar-wide" role="toolbar" aria-label="Model">
        <button type="button" class="model-button" aria-haspopup="dialog" onClick={() => choose(false)}>
          <span class="model-name">{state.kind === "empty" ? "Choose a model" : state.wanted.label}</span>
          {state.kind === "ready" && <span class="model-facts">{facts(state.model, state.fromCache)}</span>}
          <Icon name="down" />
        </button>
      </div>
      <div class="stage">
        {state.kind === "loading" && <Loading slot={slot} state={state} />}
        {state.kind === "failed" && <Failed slot={slot} state={state} choose={choose} />}
        {state.kind === "ready" && <Desk model={state.model} choose={() => choose(false)} />}
      </div>
      <Picker
        slot={slot}
        bundled={{ wanted: ENCODER, note: "Comes with this page and works offline. Finds texts that share words; it knows no meaning.", size: "4 MB" }}
        suggestions={EMBEDDING_SUGGESTIONS}
        open={sheet.value !== "none"}
        advanced={sheet.value === "token"}
        onClose={() => (sheet.value = "none")}
      />
    </div>
  );
}

/** The real default where it is on this device already, else the one that comes with the page. */
async function first(): Promise<void> {
  const known = await cachedModels().catch(() => []);
  const there = known.some(({ model, complete }) => model === MINILM.source && complete);
  if (slot.state.peek().kind === "empty") await slot.load(there ? MINILM : ENCODER);
}

function facts({ info }: Model, fromCache: boolean): string {
  const parts = [`${parameters(info.parameters)} parameters`, bytes(info.bytes.weights), `${info.dimensions ?? 0} dimensions`, `texts up to ${info.contextLength} tokens`];
  if (fromCache) parts.push("from this device");
  return parts.join(" · ");
}

function Desk({ model, choose }: { model: Model; choose: () => void }) {
  if (model.info.task !== "embed") {
    return (
      <Notice
        title={`${model.info.model} makes no vectors.`}
        actions={
          <button type="button" class="primary" onClick={choose}>
            Choose another model
          </button>
        }
      >
        It is for {model.info.task}. Choose a model for sentence embeddings.
      </Notice>
    );
  }
  return (
    <div class="desk">
      <div class="desk-side">
        {model.info.model === ENCODER.source && <Plain />}
        <Documents library={library} />
      </div>
      <div class="desk-main">
        <Working />
        {library.error.value && <Notice title="That did not work.">{library.error.value.message}</Notice>}
        <Search library={library} />
        <Picture library={library} />
      </div>
    </div>
  );
}

/** What the bundled encoder is, and what is better. */
function Plain() {
  return (
    <p class="hint plain">
      The small encoder of this page finds texts that <em>share words</em>; it knows no meaning. all-MiniLM-L6-v2 does:{" "}
      <button type="button" class="link" onClick={() => void slot.load(MINILM)}>
        download it (91 MB)
      </button>
      .
    </p>
  );
}

function Working() {
  const work = library.work.value;
  if (!work || work.what === "Searching") return null;
  const share = work.total ? work.done / work.total : undefined;
  return (
    <section class="panel working" aria-label={work.what}>
      <div class="row">
        <span class="grow">
          {work.what}
          {work.total > 0 && <span class="muted">{` ${work.done} of ${work.total} passages`}</span>}
        </span>
        <button type="button" class="quiet-button" onClick={() => library.stop()}>
          Stop
        </button>
      </div>
      <div class={share === undefined ? "bar bar-open" : "bar"} role="progressbar" aria-label={work.what} aria-valuenow={share === undefined ? undefined : Math.round(share * 100)}>
        <div style={share === undefined ? undefined : { width: `${share * 100}%` }} />
      </div>
    </section>
  );
}
