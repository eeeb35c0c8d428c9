/** The sheet of saved conversations. */

import { HISTORY } from "../strings";
import { announce } from "../ui/announce";
import { Dialog } from "../ui/dialog";
import { refocus } from "../ui/focus";
import { Icon } from "../ui/icon";
import type { Conversation } from "./conversation";
import { open as opened, rename, saved } from "./history";

interface Props {
  open: boolean;
  conversation: Conversation;
  onClose: () => void;
}

export function HistorySheet({ open, conversation, onClose }: Props) {
  const remove = (id: string): void => {
    conversation.remove(id);
    refocus("dialog[open] .sheet-head button");
  };
  const download = (): void => {
    const url = URL.createObjectURL(new Blob([JSON.stringify(saved.value, null, 2)], { type: "application/json" }));
    Object.assign(document.createElement("a"), { href: url, download: "jerboa-conversations.json" }).click();
    URL.revokeObjectURL(url);
    announce("Conversations exported.");
  };
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
      {saved.value.length === 0 && <p class="hint">{HISTORY.none}</p>}
      <ul class="choices">
        {saved.value.map(({ id, name, turns, updated }) => (
          <li key={id} class="kept" aria-current={id === opened.value ? "true" : undefined}>
            <input aria-label={HISTORY.name} value={name} onChange={(e) => rename(id, e.currentTarget.value)} />
            <div class="row">
              <span class="grow hint">{`${turns.length} turns · ${new Date(updated).toLocaleDateString("en")}`}</span>
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
              <button type="button" class="icon-button" aria-label={HISTORY.remove(name)} onClick={() => remove(id)}>
                <Icon name="trash" />
              </button>
            </div>
          </li>
        ))}
      </ul>
      {saved.value.length > 0 && (
        <button type="button" class="secondary" onClick={download}>
          {HISTORY.exportAll}
        </button>
      )}
    </Dialog>
  );
}
