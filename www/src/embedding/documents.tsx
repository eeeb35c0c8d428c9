/** The documents: drop, open or paste, and the list. */

import { useSignal } from "@preact/signals";
import type { TargetedDragEvent, TargetedEvent, TargetedSubmitEvent } from "preact";
import { useId } from "preact/hooks";
import { refocus } from "../ui/focus";
import { Icon } from "../ui/icon";
import { EXAMPLES } from "./examples";
import type { Library } from "./library";
import { COMPOSER, EMBEDDING } from "../strings";
import { textFileProblem } from "../text-file";

/** The used control may have disappeared. */
const settle = (): void => refocus(".search input:not(:disabled)", ".desk-side textarea");

export function Documents({ library }: { library: Library }) {
  const over = useSignal(false);
  const problem = useSignal("");
  const documents = library.documents.value;
  const busy = library.work.value !== undefined || !library.ready.value;

  const take = async (files: readonly File[]): Promise<void> => {
    const checked = await Promise.all(files.map(async (file) => ({ file, why: await textFileProblem(file) })));
    problem.value = checked.flatMap(({ why }) => why || []).join(" ");
    const readable = checked.filter(({ why }) => !why);
    await library.add(await Promise.all(readable.map(async ({ file }) => ({ id: file.name, text: await file.text() }))));
  };
  const removeAll = (): void => {
    if (confirm(EMBEDDING.confirm(documents.length))) void library.clear().then(settle);
  };
  const drop = (event: TargetedDragEvent<HTMLElement>): void => {
    event.preventDefault();
    over.value = false;
    if (busy) return;
    const files = [...(event.dataTransfer?.files ?? [])];
    const text = event.dataTransfer?.getData("text/plain") ?? "";
    if (files.length) void take(files);
    else if (text.trim()) void library.add([{ id: unused(titleOf(text), library), text }]);
  };
  const dragged = (event: TargetedDragEvent<HTMLElement>): void => {
    event.preventDefault();
    over.value = true;
  };
  const pick = (event: TargetedEvent<HTMLInputElement>): void => {
    const input = event.currentTarget;
    void take([...(input.files ?? [])]).then(() => (input.value = ""));
  };
  return (
    <section
      class={over.value ? "panel panel-over" : "panel"}
      aria-label={EMBEDDING.documents}
      onDragOver={dragged}
      onDragLeave={() => (over.value = false)}
      onDrop={drop}
    >
      <div class="panel-head">
        <h2>{EMBEDDING.documents}</h2>
        {documents.length > 0 && (
          <button type="button" class="quiet-button" disabled={busy} onClick={removeAll}>
            {EMBEDDING.removeAll}
          </button>
        )}
      </div>
      <Paste library={library} busy={busy} />
      <div class="row">
        <label class="file-button grow">
          <Icon name="file" />
          {EMBEDDING.openFiles}
          <input type="file" multiple accept="text/*,.md,.txt,.csv,.json,.html,.rs,.js,.ts,.py" disabled={busy} onChange={pick} />
        </label>
      </div>
      {problem.value && <p class="hint" role="alert">{problem}</p>}
      {documents.length === 0 ? (
        <button type="button" class="secondary" disabled={busy} onClick={() => void library.add([...EXAMPLES]).then(settle)}>
          {EMBEDDING.addExamples(EXAMPLES.length)}
        </button>
      ) : (
        <ul class="documents">
          {documents.map(({ id, passages }) => (
            <li key={id}>
              <span class="grow document-name" dir="auto">{id}</span>
              <span class="muted">{EMBEDDING.passages(passages)}</span>
              <button type="button" class="icon-button" aria-label={COMPOSER.remove(id)} disabled={busy} onClick={() => void library.remove(id).then(settle)}>
                <Icon name="trash" />
              </button>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

function Paste({ library, busy }: { library: Library; busy: boolean }) {
  const text = useSignal("");
  const id = useId();
  const submit = (event: TargetedSubmitEvent<HTMLFormElement>): void => {
    event.preventDefault();
    if (busy || !text.value.trim()) return;
    void library.add([{ id: unused(titleOf(text.value), library), text: text.value }]);
    text.value = "";
    document.getElementById(id)?.focus();
  };
  return (
    <form class="group" onSubmit={submit}>
      <label class="unseen" for={id}>
        {EMBEDDING.textLabel}
      </label>
      <textarea id={id} rows={3} dir="auto" placeholder={EMBEDDING.paste} value={text} onInput={(e) => (text.value = e.currentTarget.value)} />
      {text.value.trim() && (
        <button type="submit" class="secondary" disabled={busy}>
          {EMBEDDING.addText}
        </button>
      )}
    </form>
  );
}

/** A title that no document has, so that pasted text replaces nothing. */
function unused(title: string, library: Library): string {
  const names = new Set(library.documents.peek().map(({ id }) => id));
  let name = title;
  for (let n = 2; names.has(name); n++) name = `${title} (${n})`;
  return name;
}

/** The first words of a text, as its title. */
function titleOf(text: string): string {
  const line = text.trim().split("\n")[0]!.replace(/^#+\s*/, "").trim();
  return line.length > 48 ? `${line.slice(0, 48).replace(/\s+\S*$/, "")}…` : line;
}
