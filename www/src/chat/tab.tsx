/** The Chat tab: a model, a conversation with it, and the sheets around them. */

import { useSignal, useSignalEffect } from "@preact/signals";
import type { Model } from "jerboa";
import { useEffect, useRef } from "preact/hooks";
import { bytes, parameters } from "../format";
import { BUNDLED, CHAT_SUGGESTIONS } from "../model/catalog";
import { DeviceSheet } from "../model/device";
import { Picker } from "../model/picker";
import { ModelSlot } from "../model/slot";
import { Failed, Loading } from "../model/status";
import { CopyButton } from "../ui/copy";
import { Icon } from "../ui/icon";
import { Composer } from "./composer";
import { Conversation } from "./conversation";
import { Message } from "./message";
import { SettingsSheet } from "./settings";

// Outside the component: changing tabs leaves the model and the conversation as they are.
const slot = new ModelSlot();
const conversation = new Conversation();

type Sheet = "none" | "model" | "token" | "settings" | "device";

export function ChatTab() {
  const sheet = useSignal<Sheet>("none");
  const close = (): void => void (sheet.value = "none");
  const model = slot.model.value;
  const completion = model !== undefined && !model.info.hasChatTemplate;

  useEffect(() => {
    if (slot.state.peek().kind === "empty") void slot.load(BUNDLED);
  }, []);
  // Another model starts another conversation: its turns would not fit the new one's template.
  useSignalEffect(() => {
    if (slot.state.value.kind === "loading") conversation.clear();
  });

  return (
    <div class="chat">
      <div class="toolbar" role="toolbar" aria-label="Model and conversation">
        <ModelButton onClick={() => (sheet.value = "model")} />
        <span class="grow" />
        {conversation.turns.value.length > 0 && (
          <>
            <CopyButton label="Copy the conversation" text={() => conversation.asText(completion)} />
            <button type="button" class="icon-button" aria-label="New conversation" title="New conversation" onClick={() => conversation.clear()}>
              <Icon name="plus" />
            </button>
          </>
        )}
        <button type="button" class="icon-button" aria-label="Settings" title="Settings" onClick={() => (sheet.value = "settings")}>
          <Icon name="sliders" />
        </button>
        <button type="button" class="icon-button" aria-label="This device" title="This device" onClick={() => (sheet.value = "device")}>
          <Icon name="chip" />
        </button>
      </div>
      <Stage choose={(advanced) => (sheet.value = advanced ? "token" : "model")} completion={completion} />
      <Composer
        ready={model !== undefined}
        busy={conversation.busy.value}
        completion={completion}
        onSend={(text) => model && void conversation.send(model, text)}
        onStop={() => conversation.stop()}
      />
      <Picker
        slot={slot}
        bundled={{ wanted: BUNDLED, note: "Comes with this page and works offline. Continues short children's stories.", size: "1 MB" }}
        suggestions={CHAT_SUGGESTIONS}
        open={sheet.value === "model" || sheet.value === "token"}
        advanced={sheet.value === "token"}
        onClose={close}
      />
      <SettingsSheet open={sheet.value === "settings"} onClose={close} completion={completion} />
      <DeviceSheet open={sheet.value === "device"} onClose={close} model={model} />
    </div>
  );
}

function ModelButton({ onClick }: { onClick: () => void }) {
  const state = slot.state.value;
  const name = state.kind === "empty" ? "Choose a model" : state.wanted.label;
  return (
    <button type="button" class="model-button" aria-haspopup="dialog" onClick={onClick}>
      <span class="model-name">{name}</span>
      {state.kind === "ready" && <span class="model-facts">{facts(state.model, state.fromCache)}</span>}
      <Icon name="down" />
    </button>
  );
}

function facts({ info }: Model, fromCache: boolean): string {
  const parts = [info.parameters ? `${parameters(info.parameters)} parameters` : info.architecture, bytes(info.bytes?.weights ?? 0), `context ${info.contextLength.toLocaleString("en")}`];
  if (fromCache) parts.push("from this device");
  return parts.join(" · ");
}

/** What fills the middle: the load, the failure, the invitation or the conversation. */
function Stage({ choose, completion }: { choose: (advanced: boolean) => void; completion: boolean }) {
  const state = slot.state.value;
  const turns = conversation.turns.value;
  if (state.kind === "ready" && turns.length > 0) return <Log completion={completion} model={state.model} />;
  return (
    <div class="stage">
      {state.kind === "empty" && (
        <section class="welcome">
          <h1>No model is loaded.</h1>
          <button type="button" class="primary" onClick={() => choose(false)}>
            Choose a model
          </button>
        </section>
      )}
      {state.kind === "loading" && <Loading slot={slot} state={state} />}
      {state.kind === "failed" && <Failed slot={slot} state={state} choose={choose} />}
      {state.kind === "ready" && <Welcome model={state.model} completion={completion} choose={() => choose(false)} />}
    </div>
  );
}

const STORIES = ["Once upon a time", "One day, a little girl named Lily", "The dog was sad because"];
const QUESTIONS = ["Explain what a GPU does, in three sentences.", "Write a haiku about the desert at night.", "What should I cook with eggs and spinach?"];

function Welcome({ model, completion, choose }: { model: Model; completion: boolean; choose: () => void }) {
  return (
    <section class="welcome">
      <h1>{completion ? "Begin a text." : "Ask something."}</h1>
      {completion ? (
        <p>
          This model has no chat template: it does not answer, it continues the text that you begin. For a conversation,{" "}
          <button type="button" class="link" onClick={choose}>
            choose a chat model
          </button>
          .
        </p>
      ) : (
        <p>The model runs on this device. Nothing that you write leaves it.</p>
      )}
      <ul class="starters" aria-label="Examples">
        {(completion ? STORIES : QUESTIONS).map((text) => (
          <li key={text}>
            <button type="button" onClick={() => void conversation.send(model, text)}>
              {text}
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}

/** The turns, kept at their end while the reader is there. */
function Log({ completion, model }: { completion: boolean; model: Model }) {
  const ref = useRef<HTMLDivElement>(null);
  const atEnd = useSignal(true);
  const turns = conversation.turns.value;
  const last = turns.at(-1);

  useSignalEffect(() => {
    const turn = conversation.turns.value.at(-1);
    void turn?.text.value;
    void turn?.running.value;
    if (atEnd.peek()) requestAnimationFrame(() => ref.current?.scrollTo({ top: ref.current.scrollHeight }));
  });
  const scrolled = (): void => {
    const box = ref.current;
    if (box) atEnd.value = box.scrollHeight - box.scrollTop - box.clientHeight < 48;
  };
  const toEnd = (): void => {
    atEnd.value = true;
    ref.current?.scrollTo({ top: ref.current.scrollHeight });
  };
  return (
    <div class="stage" ref={ref} onScroll={scrolled} tabIndex={0} role="group" aria-label="Conversation">
      <div class="log" role="log" aria-label="Turns" aria-live="polite" aria-busy={conversation.busy.value}>
        {turns.map((turn, i) => (completion && turn.role === "user" ? null : (
          <Message
            key={turn.id}
            turn={turn}
            given={completion ? turns[i - 1] : undefined}
            onAgain={turn === last && turn.role === "assistant" ? () => void conversation.again(model) : undefined}
          />
        )))}
      </div>
      {!atEnd.value && (
        <button type="button" class="to-end icon-button" aria-label="To the end of the conversation" onClick={toEnd}>
          <Icon name="down" />
        </button>
      )}
    </div>
  );
}
