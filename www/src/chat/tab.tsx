/** The Chat tab: a model, a conversation, and their sheets. */

import { useSignal, useSignalEffect } from "@preact/signals";
import type { Model } from "jerboa";
import type { ComponentChildren, TargetedDragEvent } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { bytes, parameters } from "../format";
import { BUNDLED_CHAT, CHAT_SUGGESTIONS } from "../model/catalog";
import { DeviceSheet } from "../model/device";
import { DownloadCount } from "../model/download-button";
import { Picker } from "../model/picker";
import { PendingStrip } from "../model/status";
import { keptModel } from "../model/wrong-model";
import { CopyButton } from "../ui/copy";
import { refocus } from "../ui/focus";
import { Icon } from "../ui/icon";
import { Notice } from "../ui/notice";
import { ariaShortcut, onShortcut, shortcutHint } from "../ui/shortcuts";
import { chatAdapter } from "./adapter-store";
import { AnswerSheet } from "./answer-sheet";
import { attach } from "./attachments";
import { Composer } from "./composer";
import { ContextMeter } from "./context-meter";
import { Conversation } from "./conversation";
import { settled } from "./prose";
import { evicted, open as opened } from "./history";
import { HistorySheet, share } from "./history-sheet";
import { Message } from "./message";
import { SettingsSheet } from "./settings";
import { chatSlot, generatesText } from "./slot";
import { NotForText, Welcome } from "./welcome";
import { ANSWER, CHAT, HISTORY, HUB, LOAD, PICKER, SETTINGS, TOOLBAR, TRAIN, VISION } from "../strings";
import { locale } from "../language";

/** As in other chats. */
const NEW_CONVERSATION = { letter: "o", shift: true };
const FIND_CONVERSATION = { letter: "k" };

// Outside the component: switching tabs keeps the model and the conversation.
const slot = chatSlot;
const conversation = new Conversation();

/** Maximum number of deleted conversations that the notice names. */
const MAX_NAMES = 5;

type Sheet = "none" | "model" | "token" | "answers" | "settings" | "device" | "history";

/** The loaded model, if it can generate text. */
function writes(): Model | undefined {
  const ready = slot.current.value;
  return ready && generatesText(ready) ? ready.model : undefined;
}

export function ChatTab() {
  const sheet = useSignal<Sheet>("none");
  const close = (): void => void (sheet.value = "none");
  const model = writes();
  const completion = model ? !model.info.hasChatTemplate : conversation.completion.value;
  const choose = (advanced: boolean): void => void (sheet.value = advanced ? "token" : "model");

  // Before the first paint, so that the page does not flash without a model.
  useLayoutEffect(() => {
    if (slot.idle) void slot.load(slot.lastRequest.peek() ?? BUNDLED_CHAT);
  }, []);

  const renew = (): void => {
    conversation.clear();
    refocus(".composer textarea");
  };
  useEffect(() => {
    const ends = [onShortcut(NEW_CONVERSATION, renew), onShortcut(FIND_CONVERSATION, () => (sheet.value = "history"))];
    return () => ends.forEach((end) => end());
  }, []);

  // A story has no attachments.
  const dragged = (event: TargetedDragEvent<HTMLElement>): void => {
    if (!completion && event.dataTransfer?.types.includes("Files")) event.preventDefault();
  };
  const drop = (event: TargetedDragEvent<HTMLElement>): void => {
    const files = [...(event.dataTransfer?.files ?? [])];
    if (completion || files.length === 0) return;
    event.preventDefault();
    void attach(files, model);
  };

  return (
    <div class="chat" onDragOver={dragged} onDrop={drop}>
      <div class="toolbar" role="toolbar" aria-label={TOOLBAR.label}>
        <ModelButton onClick={() => choose(false)} />
        <span class="grow" />
        {model && chatAdapter.value?.model === model && <AdapterButton />}
        {conversation.turns.value.length > 0 && (
          <>
            <span class="roomy">
              <CopyButton label={TOOLBAR.copy} text={() => conversation.asText()} />
              <button type="button" class="icon-button" aria-label={TOOLBAR.share} title={HISTORY.shareHint} disabled={conversation.busy.value} onClick={() => void share(opened.peek())}>
                <Icon name="share" />
              </button>
            </span>
            <button
              type="button"
              class="icon-button"
              aria-label={HISTORY.fresh}
              aria-keyshortcuts={ariaShortcut(NEW_CONVERSATION)}
              title={`${HISTORY.fresh} (${shortcutHint(NEW_CONVERSATION)})`}
              onClick={renew}
            >
              <Icon name="plus" />
            </button>
          </>
        )}
        <button type="button" class="icon-button" aria-label={HISTORY.title} aria-keyshortcuts={ariaShortcut(FIND_CONVERSATION)} title={`${HISTORY.title} (${shortcutHint(FIND_CONVERSATION)})`} onClick={() => (sheet.value = "history")}>
          <Icon name="list" />
        </button>
        <button type="button" class="icon-button" aria-label={ANSWER.title} title={TOOLBAR.answers} onClick={() => (sheet.value = "answers")}>
          <Icon name="braces" />
        </button>
        <button type="button" class="icon-button" aria-label={SETTINGS.title} title={SETTINGS.title} onClick={() => (sheet.value = "settings")}>
          <Icon name="sliders" />
        </button>
        <button type="button" class="icon-button" aria-label={TOOLBAR.device} title={TOOLBAR.device} onClick={() => (sheet.value = "device")}>
          <Icon name="chip" />
        </button>
      </div>
      <Stage choose={choose} />
      <Composer
        ready={model !== undefined}
        coming={!slot.current.value && slot.pending.value !== undefined && !slot.pending.value.error}
        busy={conversation.busy.value}
        completion={completion}
        meter={model && <ContextMeter conversation={conversation} model={model} />}
        model={model}
        onSend={(text, attachments) => model && void conversation.send(model, text, attachments)}
        onStop={() => conversation.stop()}
      />
      <Picker
        slot={slot}
        bundled={{ wanted: BUNDLED_CHAT, note: CHAT.bundledNote, size: "1 MB" }}
        suggestions={CHAT_SUGGESTIONS}
        task="text-generation"
        open={sheet.value === "model" || sheet.value === "token"}
        advanced={sheet.value === "token"}
        onClose={close}
      />
      <HistorySheet open={sheet.value === "history"} conversation={conversation} onClose={close} />
      <AnswerSheet open={sheet.value === "answers"} onClose={close} info={model?.info} />
      <SettingsSheet open={sheet.value === "settings"} onClose={close} completion={completion} conversation={conversation} />
      <DeviceSheet open={sheet.value === "device"} onClose={close} ready={slot.current.value} />
    </div>
  );
}

/** Shows that answers use a trained adapter, and ends that. */
function AdapterButton() {
  const end = (): void => {
    chatAdapter.value = undefined;
    refocus(".composer textarea");
  };
  return (
    <button type="button" class="quiet-button adapter-button" aria-label={`LoRA: ${TRAIN.end}`} title={TRAIN.end} onClick={end}>
      LoRA
      <Icon name="close" />
    </button>
  );
}

function ModelButton({ onClick }: { onClick: () => void }) {
  const ready = slot.current.value;
  const name = ready?.wanted.label ?? slot.pending.value?.wanted.label ?? PICKER.title;
  return (
    <button type="button" class="model-button" aria-haspopup="dialog" onClick={onClick}>
      <span class="model-name">{name}</span>
      {ready && <span class="model-facts">{facts(ready.model, ready.fromCache)}</span>}
      <DownloadCount />
      <Icon name="down" />
    </button>
  );
}

function facts({ info }: Model, fromCache: boolean): string {
  const parts = [info.parameters ? HUB.parameters(parameters(info.parameters)) : info.architecture, bytes(info.bytes?.weights ?? 0), TOOLBAR.context(info.contextLength.toLocaleString(locale()))];
  if (fromCache) parts.push(LOAD.fromDevice);
  return parts.join(" · ");
}

/** The center of the tab: loading, failure, welcome screen or conversation. */
function Stage({ choose }: { choose: (advanced: boolean) => void }) {
  const ready = slot.current.value;
  const pending = slot.pending.value;
  const model = writes();
  const talking = conversation.turns.value.length > 0;
  const refused = slot.refused.value;
  const above = (
    <>
      <Evicted />
      {refused ? (
        <NotForText model={refused.model} reads={refused.reads} choose={() => choose(false)} kept={keptModel(slot)} />
      ) : (
        pending && (ready || talking) && <PendingStrip slot={slot} pending={pending} choose={choose} />
      )}
    </>
  );
  if (talking && (!ready || model)) return <Log above={above} model={model} />;
  return (
    <div class="stage">
      {above}
      {ready && !model ? (
        <NotForText model={ready.model} reads={ready.reads} choose={() => choose(false)} />
      ) : (
        <Welcome slot={slot} model={model} send={(text) => model && void conversation.send(model, text)} choose={choose} />
      )}
    </div>
  );
}

/** Names the conversations that were deleted to make room. */
function Evicted() {
  const names = evicted.value;
  if (names.length === 0) return null;
  const dismiss = (): void => {
    evicted.value = [];
    refocus(".composer textarea");
  };
  const shown = [...names.slice(0, MAX_NAMES).map((name) => `“${name}”`), ...(names.length > MAX_NAMES ? ["…"] : [])];
  return (
    <Notice
      actions={
        <button type="button" class="secondary" onClick={dismiss}>
          {LOAD.dismiss}
        </button>
      }
    >
      {HISTORY.evicted(shown.join(", "))}
    </Notice>
  );
}

/** The turns; stays scrolled to the end while the reader is there. */
function Log({ above, model }: { above: ComponentChildren; model: Model | undefined }) {
  const completion = conversation.completion.value;
  const ref = useRef<HTMLDivElement>(null);
  const log = useRef<HTMLDivElement>(null);
  const top = useRef(0);
  const atEnd = useSignal(true);
  const turns = conversation.turns.value;
  const last = turns.at(-1);
  const busy = conversation.busy.value;
  /** Moves the focus to the composer: the used control disappears while the answer is generated. */
  const after = (act: () => unknown) => (): void => {
    void act();
    refocus(".composer textarea");
  };

  const toEnd = (): void => {
    atEnd.value = true;
    ref.current?.scrollTo({ top: ref.current.scrollHeight });
  };
  useSignalEffect(() => {
    void settled.value;
    void conversation.turns.value.at(-1)?.running.value;
    if (atEnd.peek()) requestAnimationFrame(toEnd);
  });
  // Follow a growing answer; expanded parts stay in place.
  useEffect(() => {
    if (!busy || !log.current) return;
    toEnd();
    const grown = new ResizeObserver(() => atEnd.peek() && toEnd());
    grown.observe(log.current);
    return () => grown.disconnect();
  }, [busy]);
  // Keep the end visible when an on-screen keyboard opens.
  useEffect(() => {
    if (!ref.current) return;
    const resized = new ResizeObserver(() => atEnd.peek() && toEnd());
    resized.observe(ref.current);
    return () => resized.disconnect();
  }, []);
  const scrolled = (): void => {
    const box = ref.current;
    if (!box) return;
    // Content that grows above moves the box down; only scrolling up leaves the end.
    const near = box.scrollHeight - box.scrollTop - box.clientHeight < 48;
    atEnd.value = near || (atEnd.peek() && box.scrollTop >= top.current);
    top.current = box.scrollTop;
  };
  return (
    <div class="stage" ref={ref} onScroll={scrolled} tabIndex={0} role="group" aria-label={VISION.conversation}>
      {above}
      <h1 class="unseen">{VISION.conversation}</h1>
      <div class="log" ref={log} role="log" aria-label={TOOLBAR.turns} aria-live="polite" aria-busy={conversation.busy.value}>
        {turns.map((turn, i) => (completion && turn.role === "user" ? null : (
          <Message
            key={turn.id}
            turn={turn}
            given={completion ? turns[i - 1] : undefined}
            onAgain={model && turn === last && turn.role === "assistant" ? after(() => conversation.again(model)) : undefined}
            onMore={model && turn === last && turn.role === "assistant" ? after(() => conversation.goOn(model)) : undefined}
            onEdit={busy ? undefined : turn.role === "assistant" ? (text) => after(() => conversation.rewrite(turn, text))() : model && ((text) => after(() => conversation.edit(model, turn, text))())}
            answers={conversation.answers(turn)}
            onShow={busy ? undefined : (other) => after(() => conversation.show(other))()}
            onBranch={!busy && turns.length > 2 && turn.role === "assistant" ? after(() => conversation.branch(turns[i + 1])) : undefined}
          />
        )))}
      </div>
      {!atEnd.value && (
        <button type="button" class="to-end icon-button" aria-label={TOOLBAR.toEnd} onClick={toEnd}>
          <Icon name="down" />
        </button>
      )}
    </div>
  );
}
