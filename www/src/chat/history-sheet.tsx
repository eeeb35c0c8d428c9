/** The sheet of saved conversations: search, rename, open, delete, export and import. */

import { useSignal } from "@preact/signals";
import type { TargetedEvent } from "preact";
import { HISTORY } from "../strings";
import { announce } from "../ui/announce";
import { Dialog } from "../ui/dialog";
import { refocus } from "../ui/focus";
import { Icon } from "../ui/icon";
import { save } from "../ui/save";
import type { Conversation } from "./conversation";
import { importConversations, open as opened, rename, saved, type SavedConversation, searchConversations, timeOf } from "./history";
import { locale } from "../language";

interface Props {
  open: boolean;
  conversation: Conversation;
  onClose: () => void;
}

export function HistorySheet({ open, conversation, onClose }: Props) {
  return (
    <Dialog open={open} title={HISTORY.title} onClose={onClose} side>
      <button
        type="button"
        class="primary"
        onClick={() => {
          conversation.clear();
          onClose();
        }}
      >
        {HISTORY.fresh}
      </button>
      <List conversation={conversation} onClose={onClose} />
      <Transfer />
    </Dialog>
  );
}

function List({ conversation, onClose }: Omit<Props, "open">) {
  const query = useSignal("");
  if (saved.value.length === 0) return <p class="hint">{HISTORY.none}</p>;
  const found = searchConversations(query.value);
  return (
    <>
      <input type="search" aria-label={HISTORY.search} placeholder={HISTORY.search} dir="auto" value={query} onInput={(e) => (query.value = e.currentTarget.value)} />
      {found.length === 0 && (
        <p class="hint" role="status">
          {HISTORY.noneFound(query.value)}
        </p>
      )}
      <ul class="choices">
        {found.map(({ conversation: each, line }) => (
          <Entry key={each.id} entry={each} line={line} conversation={conversation} onClose={onClose} />
        ))}
      </ul>
    </>
  );
}

interface EntryProps extends Omit<Props, "open"> {
  entry: SavedConversation;
  /** The line that the search found. */
  line: string;
}

/** Shares a saved conversation. The code that writes its file is loaded on first use. */
export async function share(id: string): Promise<void> {
  const found = saved.peek().find((each) => each.id === id);
  if (!found) return;
  try {
    const { shareConversation } = await import("./share");
    if (await shareConversation(found)) announce(HISTORY.shared);
  } catch {
    announce(HISTORY.notShared);
  }
}

function Entry({ entry: { id, name, turns, updated }, line, conversation, onClose }: EntryProps) {
  const remove = (): void => {
    if (!confirm(HISTORY.confirm(name))) return;
    conversation.remove(id);
    refocus("dialog[open] .sheet-head button");
  };
  const change = (field: HTMLInputElement): void => {
    rename(id, field.value);
    // An empty name was not stored.
    field.value = saved.peek().find((each) => each.id === id)?.name ?? "";
  };
  return (
    <li class="kept" aria-current={id === opened.value ? "true" : undefined}>
      <input aria-label={HISTORY.name} value={name} dir="auto" onChange={(e) => change(e.currentTarget)} />
      {line && (
        <p class="kept-line hint" dir="auto">
          {line}
        </p>
      )}
      <div class="row">
        <span class="grow hint">{`${HISTORY.turns(turns.length)} · ${new Date(timeOf(updated)).toLocaleDateString(locale())}`}</span>
        <button
          type="button"
          class="quiet-button"
          onClick={() => {
            conversation.open(id);
            onClose();
          }}
        >
          {HISTORY.open}
        </button>
        <button type="button" class="icon-button" aria-label={HISTORY.share(name)} title={HISTORY.shareHint} onClick={() => void share(id)}>
          <Icon name="share" />
        </button>
        <button type="button" class="icon-button" aria-label={HISTORY.remove(name)} onClick={remove}>
          <Icon name="trash" />
        </button>
      </div>
    </li>
  );
}

function Transfer() {
  const problem = useSignal("");
  const download = (): void => {
    save("jerboa-conversations.json", new Blob([JSON.stringify(saved.value, null, 2)], { type: "application/json" }));
    announce(HISTORY.exported);
  };
  const upload = async ({ currentTarget: input }: TargetedEvent<HTMLInputElement>): Promise<void> => {
    const text = await input.files?.[0]?.text();
    input.value = "";
    if (text === undefined) return;
    const added = importConversations(text);
    problem.value = added === undefined ? HISTORY.notImported : "";
    if (added !== undefined) announce(HISTORY.imported(added));
  };
  return (
    <section class="group">
      <div class="row row-wrap">
        {saved.value.length > 0 && (
          <button type="button" class="secondary" onClick={download}>
            {HISTORY.exportAll}
          </button>
        )}
        <label class="file-button file-solid">
          {HISTORY.import}
          <input type="file" accept="application/json,.json" onChange={(event) => void upload(event)} />
        </label>
      </div>
      {problem.value && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
    </section>
  );
}
