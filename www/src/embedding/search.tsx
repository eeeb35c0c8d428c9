/** The query and the passages found, best first. */

import { useSignal } from "@preact/signals";
import type { TargetedSubmitEvent } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { draft } from "../chat/history";
import { milliseconds } from "../format";
import { Icon } from "../ui/icon";
import { EMBEDDING, HUB, VISION } from "../strings";
import { QUESTIONS } from "./examples";
import type { Library } from "./library";

/** Passages shown at once. */
const FEW = 5;

export function Search({ library }: { library: Library }) {
  const query = useSignal(library.found.peek()?.query ?? "");
  const ready = library.ready.value && library.records.value.length > 0;
  const asked = library.found.value?.query;
  useEffect(() => {
    if (asked) query.value = asked;
  }, [asked]);
  const submit = (event: TargetedSubmitEvent<HTMLFormElement>): void => {
    event.preventDefault();
    if (ready) void library.search(query.value);
  };
  return (
    <section class="panel" aria-label={HUB.search}>
      <form class="row search" role="search" onSubmit={submit}>
        <input
          type="search"
          class="grow"
          aria-label={VISION.question}
          placeholder={EMBEDDING.placeholder}
          dir="auto"
          enterkeyhint="search"
          value={query}
          onInput={(e) => (query.value = e.currentTarget.value)}
        />
        <button type="submit" class="primary" disabled={!ready || !query.value.trim()}>
          {HUB.search}
        </button>
      </form>
      <Hits key={library.found.value?.query} library={library} />
    </section>
  );
}

/** Questions about the example notes that are there. */
function Questions({ library }: { library: Library }) {
  const names = new Set(library.documents.value.map(({ id }) => id));
  const questions = QUESTIONS.filter(({ note }) => names.has(note));
  if (questions.length === 0) return null;
  return (
    <ul class="starters" aria-label={EMBEDDING.examples}>
      {questions.map(({ text }) => (
        <li key={text}>
          <button type="button" disabled={library.work.value !== undefined} onClick={() => void library.search(text)}>
            {text}
          </button>
        </li>
      ))}
    </ul>
  );
}

function Hits({ library }: { library: Library }) {
  const found = library.found.value;
  const all = useSignal(false);
  const list = useRef<HTMLOListElement>(null);
  useEffect(() => list.current?.parentElement?.scrollIntoView({ block: "nearest", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" }), [found]);
  if (!found) {
    return (
      <>
        <p class="hint">{library.records.value.length ? EMBEDDING.ask : EMBEDDING.none}</p>
        <Questions library={library} />
      </>
    );
  }
  const toChat = async (): Promise<void> => {
    const text = await library.recall(found.query);
    if (!text) return;
    // Below what the user has not sent yet.
    draft.value = [draft.peek().trimEnd(), text].filter(Boolean).join("\n\n");
    location.hash = "#chat";
  };
  const shown = all.value ? found.hits : found.hits.slice(0, FEW);
  return (
    <>
      <div class="panel-head">
        <p class="hint">
          {EMBEDDING.nearest(found.hits.length, library.records.value.length, milliseconds(found.ms))}
        </p>
        {found.hits.length > 0 && (
          <button type="button" class="quiet-button" onClick={() => void toChat()}>
            <Icon name="send" />
            {EMBEDDING.toChat}
          </button>
        )}
      </div>
      <ol ref={list} class="hits" aria-label={EMBEDDING.passagesFor(found.query)}>
        {shown.map(({ id, document, text, score }) => (
          <li key={id} class="hit">
            <div class="hit-head">
              <strong dir="auto">{document}</strong>
              <span class="score" title={EMBEDDING.cosine}>
                {score.toFixed(3)}
              </span>
            </div>
            <div class="score-bar" aria-hidden="true">
              <div style={{ width: `${Math.max(0, Math.min(1, score)) * 100}%` }} />
            </div>
            <p dir="auto">{text}</p>
          </li>
        ))}
      </ol>
      {shown.length < found.hits.length && (
        <button type="button" class="secondary" onClick={() => (all.value = true)}>
          {EMBEDDING.more(found.hits.length - shown.length)}
        </button>
      )}
    </>
  );
}
