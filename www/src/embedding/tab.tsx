/** The Embedding tab: an embedding model, documents, semantic search and a plot. */

import { useSignalEffect } from "@preact/signals";
import type { Model } from "jerboa";
import { useEffect } from "preact/hooks";
import { bytes, parameters } from "../format";
import { EMBEDDING_SUGGESTIONS, BUNDLED_ENCODER, MINILM } from "../model/catalog";
import { ModelStage } from "../model/stage";
import { type Kept, WrongModel } from "../model/wrong-model";
import { EMBEDDING, HUB, LOAD, TAB_NAMES, UI } from "../strings";
import { refocus } from "../ui/focus";
import { Notice } from "../ui/notice";
import { Documents } from "./documents";
import { Library } from "./library";
import { Picture } from "./scatter-plot";
import { Search } from "./search";
import { embeddingSlot, loadFirst } from "./slot";

// Outside the component: switching tabs keeps the model and the results.
const library = new Library();
let opened: Model | undefined;

export function EmbeddingTab() {
  useEffect(() => {
    if (embeddingSlot.idle) void loadFirst();
  }, []);
  useSignalEffect(() => {
    const model = embeddingSlot.model.value;
    if (model === opened) return;
    opened = model;
    if (model?.info.task === "embed") void library.open(model);
    else void library.close();
  });
  return (
    <ModelStage
      slot={embeddingSlot}
      title={TAB_NAMES.embedding}
      bundled={{ wanted: BUNDLED_ENCODER, note: EMBEDDING.bundledNote, size: "4 MB" }}
      suggestions={EMBEDDING_SUGGESTIONS}
      hubTask="sentence-similarity"
      facts={facts}
    >
      {(model, choose, kept) => model && <Desk model={model} choose={choose} kept={kept} />}
    </ModelStage>
  );
}

function facts({ info }: Model, fromCache: boolean): string {
  const parts = [HUB.parameters(parameters(info.parameters)), bytes(info.bytes.weights), info.dimensions ? EMBEDDING.dimensions(info.dimensions) : "", EMBEDDING.upTo(info.contextLength)].filter(Boolean);
  if (fromCache) parts.push(LOAD.fromDevice);
  return parts.join(" · ");
}

function Desk({ model, choose, kept }: { model: Model; choose: () => void; kept: Kept | undefined }) {
  if (model.info.task !== "embed") {
    return (
      <WrongModel title={EMBEDDING.wrongTask(model.info.model)} choose={choose} kept={kept}>
        {model.info.task === "rerank" ? EMBEDDING.ranks : EMBEDDING.generates}
      </WrongModel>
    );
  }
  return (
    <div class="desk">
      <div class="desk-side">
        {model.info.model === BUNDLED_ENCODER.source && <Plain />}
        <Documents library={library} />
      </div>
      <div class="desk-main">
        <Working />
        {library.error.value && <Notice title={EMBEDDING.failed} error={library.error.value} />}
        <Search library={library} />
        <Picture library={library} />
      </div>
    </div>
  );
}

/** Explains the bundled encoder and offers a better one. */
function Plain() {
  return (
    <p class="hint plain">
      {EMBEDDING.plain}{" "}
      <button type="button" class="link" onClick={() => void embeddingSlot.load(MINILM)}>
        {EMBEDDING.download}
      </button>
      .
    </p>
  );
}

function Working() {
  const work = library.work.value;
  if (!work || work.what === EMBEDDING.searching) return null;
  const share = work.total ? work.done / work.total : undefined;
  const stop = (): void => {
    library.stop();
    refocus(".search input", ".desk-side textarea");
  };
  return (
    <section class="panel working" aria-label={work.what}>
      <div class="row">
        <span class="grow">
          {work.what}
          {work.total > 0 && <span class="muted">{` ${EMBEDDING.progress(work.done, work.total)}`}</span>}
        </span>
        <button type="button" class="quiet-button" onClick={stop}>
          {UI.stop}
        </button>
      </div>
      <div class={share === undefined ? "bar bar-open" : "bar"} role="progressbar" aria-label={work.what} aria-valuenow={share === undefined ? undefined : Math.round(share * 100)}>
        <div style={share === undefined ? undefined : { width: `${share * 100}%` }} />
      </div>
    </section>
  );
}
