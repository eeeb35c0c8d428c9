/** The field for the next text, which grows with it, and the button that sends or stops. */

import type { TargetedKeyboardEvent } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Icon } from "../ui/icon";
import { draft } from "./history";

interface Props {
  ready: boolean;
  busy: boolean;
  completion: boolean;
  onSend: (text: string) => void;
  onStop: () => void;
}

/** On a touch keyboard, Enter is for a new line: the button is near. */
const touch = matchMedia("(pointer: coarse)");

export function Composer({ ready, busy, completion, onSend, onStop }: Props) {
  const field = useRef<HTMLTextAreaElement>(null);

  useEffect(() => {
    if (ready && !touch.matches && document.activeElement === document.body) field.current?.focus();
  }, [ready]);
  useEffect(() => {
    const area = field.current;
    if (!area) return;
    area.style.height = "auto";
    area.style.height = `${area.scrollHeight}px`;
  }, [draft.value]);

  const send = (): void => {
    if (!ready || busy || !draft.value.trim()) return;
    onSend(completion ? draft.value : draft.value.trim());
    draft.value = "";
  };
  const key = (event: TargetedKeyboardEvent<HTMLTextAreaElement>): void => {
    if (event.key === "Escape" && busy) return onStop();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || touch.matches) return;
    event.preventDefault();
    send();
  };
  const label = completion ? "Text to continue" : "Message";
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <textarea
        ref={field}
        rows={1}
        dir="auto"
        aria-label={label}
        placeholder={completion ? "Begin a text…" : "Write a message…"}
        enterkeyhint={touch.matches ? "enter" : "send"}
        value={draft}
        onInput={(e) => (draft.value = e.currentTarget.value)}
        onKeyDown={key}
      />
      {busy ? (
        <button
          type="button"
          class="send"
          aria-label="Stop"
          title="Stop (Esc)"
          onClick={() => {
            onStop();
            field.current?.focus();
          }}
        >
          <Icon name="stop" />
        </button>
      ) : (
        <button type="submit" class="send" aria-label={completion ? "Continue" : "Send"} disabled={!ready || !draft.value.trim()}>
          <Icon name="send" />
        </button>
      )}
    </form>
  );
}
