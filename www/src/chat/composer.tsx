/**
 * The message field, which grows with its text, and the send or stop button. Messages sent before the model is ready
 * wait for it.
 */

import { signal, useSignal } from "@preact/signals";
import type { Model } from "jerboa";
import type { ComponentChildren, ComponentType, TargetedKeyboardEvent } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { CHAT, COMPOSER, UI } from "../strings";
import { announce } from "../ui/announce";
import { useDoubleClickGuard } from "../ui/double-click";
import { Icon } from "../ui/icon";
import { formatProblem } from "./answer-store";
import { attach, AttachButton, Attached, type Attachment, takeAttachments } from "./attachments";
import { draft } from "./history";

interface Props {
  ready: boolean;
  /** Whether a model is loading while none is ready. */
  coming: boolean;
  busy: boolean;
  completion: boolean;
  /** Shown next to the send button. */
  meter?: ComponentChildren;
  /** The loaded model. */
  model: Model | undefined;
  onSend: (text: string, attachments: Attachment[]) => void;
  onStop: () => void;
}

/** On touch keyboards Enter inserts a new line; the send button is close. */
const touch = matchMedia("(pointer: coarse)");

export function Composer({ ready, coming, busy, completion, meter, model, onSend, onStop }: Props) {
  const field = useRef<HTMLTextAreaElement>(null);
  const waits = useSignal(false);
  /** Whether a message was refused because of the chosen format. */
  const refused = useSignal(false);
  const problem = refused.value && !completion ? formatProblem() : undefined;
  const { started, guard } = useDoubleClickGuard();

  useEffect(() => {
    if (ready && !touch.matches && document.activeElement === document.body) field.current?.focus();
  }, [ready]);
  useEffect(() => {
    const area = field.current;
    if (!area) return;
    area.style.height = "auto";
    area.style.height = `${area.scrollHeight}px`;
  }, [draft.value]);

  // A failed or cancelled load leaves the text in the field.
  useEffect(() => {
    if (waits.value && ready) send();
    if (!coming) waits.value = false;
  }, [ready, coming]);

  const send = (): void => {
    if (busy || !draft.value.trim()) return;
    refused.value = !completion && formatProblem() !== undefined;
    if (refused.value) return;
    waits.value = !ready && coming;
    if (waits.value) announce(CHAT.waits);
    if (!ready) return;
    onSend(completion ? draft.value : draft.value.trim(), completion ? [] : takeAttachments());
    draft.value = "";
  };
  const key = (event: TargetedKeyboardEvent<HTMLTextAreaElement>): void => {
    if (event.key === "Escape") waits.value = false;
    if (event.key === "Escape" && busy) return onStop();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || touch.matches) return;
    event.preventDefault();
    send();
  };
  const action = completion ? COMPOSER.continue : COMPOSER.send;
  const label = completion ? COMPOSER.text : COMPOSER.message;
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        started();
        send();
      }}
      onPaste={(event) => {
        const files = [...(event.clipboardData?.files ?? [])];
        if (completion || files.length === 0) return;
        event.preventDefault();
        void attach(files, model);
      }}
    >
      {!completion && <Attached />}
      {problem && (
        <p class="attached problem" role="alert">
          {problem}
        </p>
      )}
      <textarea
        ref={field}
        rows={1}
        dir="auto"
        aria-label={label}
        placeholder={completion ? COMPOSER.startWriting : COMPOSER.write}
        enterkeyhint={touch.matches ? "enter" : "send"}
        value={draft}
        onInput={(e) => {
          draft.value = e.currentTarget.value;
          waits.value = false;
        }}
        onKeyDown={key}
      />
      {!completion && <AttachButton model={model} disabled={!ready} />}
      <Microphone />
      {meter}
      {busy ? (
        <button
          type="button"
          class="send"
          aria-label={UI.stop}
          title={COMPOSER.stopHint}
          onClick={guard(() => {
            onStop();
            field.current?.focus();
          })}
        >
          <Icon name="stop" />
        </button>
      ) : (
        <button
          type="submit"
          class={waits.value ? "send send-waits" : "send"}
          aria-label={action}
          aria-pressed={waits.value || undefined}
          title={waits.value ? CHAT.waits : action}
          disabled={(!ready && !coming) || !draft.value.trim()}
        >
          <Icon name="send" />
        </button>
      )}
    </form>
  );
}

const dictation = signal<ComponentType<{ onText: (text: string) => void }> | undefined>(undefined);

/** The microphone's button, which becomes speech/dictation.tsx with its first use. */
function Microphone() {
  const View = dictation.value;
  const add = (text: string): void => void (draft.value = draft.peek() && !/\s$/.test(draft.peek()) ? `${draft.peek()} ${text}` : draft.peek() + text);
  if (View) return <View onText={add} />;
  const load = (): void => void import("../speech/dictation").then(({ default: view }) => (dictation.value = view), () => announce(COMPOSER.dictationFailed));
  return (
    <button type="button" class="icon-button" aria-label={COMPOSER.dictate} title={COMPOSER.dictate} onClick={load}>
      <Icon name="mic" />
    </button>
  );
}
