/** The Vision tab: a vision model, images, and a conversation about them. */

import { useSignal, useSignalEffect } from "@preact/signals";
import type { Model } from "jerboa";
import type { TargetedSubmitEvent } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Message } from "../chat/message";
import { bytes, milliseconds, parameters } from "../format";
import { BUNDLED_VISION, requestOf, VISION_SUGGESTIONS } from "../model/catalog";
import { ModelSlot } from "../model/model-store";
import { ModelStage } from "../model/stage";
import { type Kept, WrongModel } from "../model/wrong-model";
import { HUB, LOAD, TAB_NAMES, TOOLBAR, UI, VISION } from "../strings";
import { useDoubleClickGuard } from "../ui/double-click";
import { refocus } from "../ui/focus";
import { Icon } from "../ui/icon";
import { ImageFacts, ImageList } from "./images";
import { type VisionTurn, VisionChat } from "./vision-chat";
import { locale } from "../language";

// Outside the component: switching tabs keeps the model and the conversation.
const slot = new ModelSlot("vision", ({ model }) => acceptsImages(model));
const vision = new VisionChat();
let met: Model | undefined;

/** Gets the focus of controls that disappear. */
const QUESTION = ".composer input";

export function VisionTab() {
  useEffect(() => {
    if (slot.idle) void slot.load(slot.lastRequest.peek() ?? BUNDLED_VISION);
  }, []);
  useSignalEffect(() => {
    const model = slot.model.value;
    if (model === met) return;
    met = model;
    if (model && acceptsImages(model)) vision.setModel(model);
  });
  const renew = (): void => {
    vision.clear();
    refocus(QUESTION);
  };
  return (
    <ModelStage
      slot={slot}
      title={TAB_NAMES.vision}
      bundled={{ wanted: BUNDLED_VISION, note: VISION.bundledNote, size: "0.3 MB" }}
      suggestions={VISION_SUGGESTIONS}
      hubTask="image-text-to-text"
      facts={facts}
      tools={
        <>
          <span class="grow" />
          {vision.turns.value.length > 0 && (
            <button type="button" class="icon-button" aria-label={VISION.fresh} title={VISION.fresh} onClick={renew}>
              <Icon name="plus" />
            </button>
          )}
        </>
      }
    >
      {(model, choose, kept) => model && <Desk model={model} choose={choose} kept={kept} />}
    </ModelStage>
  );
}

function acceptsImages({ info }: Model): boolean {
  return info.capabilities?.includes("image") === true;
}

function facts({ info }: Model, fromCache: boolean): string {
  const parts = [HUB.parameters(parameters(info.parameters)), bytes(info.bytes.weights), TOOLBAR.context(info.contextLength.toLocaleString(locale()))];
  if (fromCache) parts.push(LOAD.fromDevice);
  return parts.join(" · ");
}

function Desk({ model, choose, kept }: { model: Model; choose: () => void; kept: Kept | undefined }) {
  if (!acceptsImages(model)) {
    return (
      <WrongModel title={VISION.noImages(model.info.model)} choose={choose} kept={kept}>
        {VISION.chooseVision}
      </WrongModel>
    );
  }
  return (
    <div class="desk">
      <div class="desk-side">
        {model.info.model === BUNDLED_VISION.source && <RealModel />}
        <ImageList talk={vision} model={model} />
      </div>
      <div class="desk-main">
        <Log model={model} />
        <Ask model={model} />
      </div>
    </div>
  );
}

/** Explains the bundled model and offers a real one. */
function RealModel() {
  const offer = VISION_SUGGESTIONS[0]!;
  return (
    <section class="panel">
      <p class="hint">{VISION.randomWeights}</p>
      <button type="button" class="primary" disabled={slot.pending.value !== undefined && !slot.pending.value.error} onClick={() => void slot.load(requestOf(offer))}>
        {VISION.load(offer.name, bytes(offer.bytes))}
      </button>
    </section>
  );
}

function Log({ model }: { model: Model }) {
  const turns = vision.turns.value;
  const end = useRef<HTMLDivElement>(null);
  useEffect(() => end.current?.scrollIntoView({ block: "nearest" }), [turns.length]);
  if (turns.length === 0) return <p class="hint">{VISION.begin}</p>;
  const last = turns.at(-1);
  const again = (): void => {
    void vision.again(model);
    refocus(QUESTION);
  };
  return (
    <section class="talk" aria-label={VISION.conversation}>
      {turns.map((turn) => (
        <div key={turn.id} class="talk-turn">
          {turn.images.length > 0 && (
            <ul class="shots shots-told">
              {turn.images.map((shot) => (
                <li key={shot.id}>
                  <ImageFacts shot={shot} />
                </li>
              ))}
            </ul>
          )}
          <Message turn={turn} onAgain={turn === last && turn.role === "assistant" ? again : undefined} />
          <Encoded turn={turn} />
        </div>
      ))}
      <div ref={end} />
    </section>
  );
}

function Encoded({ turn }: { turn: VisionTurn }) {
  return turn.encodeMs.value > 0 ? <p class="hint">{VISION.encoded(milliseconds(turn.encodeMs.value))}</p> : null;
}

function Ask({ model }: { model: Model }) {
  const question = useSignal("");
  const field = useRef<HTMLInputElement>(null);
  const busy = vision.busy.value;
  const { started, guard } = useDoubleClickGuard();
  const asked = vision.turns.value.length > 0;
  const usual = vision.shots.value.at(-1)?.video ? VISION.defaultVideoQuestion : VISION.defaultQuestion;
  const ready = !busy && (asked || vision.shots.value.some(({ error }) => !error.value));
  const submit = (event: TargetedSubmitEvent<HTMLFormElement>): void => {
    event.preventDefault();
    if (!ready) return;
    started();
    void vision.ask(model, question.value.trim() || usual);
    question.value = "";
    field.current?.focus();
  };
  return (
    <form class="composer composer-wide" onSubmit={submit}>
      <input ref={field} type="text" class="grow" aria-label={VISION.question} dir="auto" placeholder={usual} enterkeyhint="send" value={question} onInput={(e) => (question.value = e.currentTarget.value)} />
      {busy ? (
        <button type="button" class="send" aria-label={UI.stop} onClick={guard(() => vision.stop())}>
          <Icon name="stop" />
        </button>
      ) : (
        <button type="submit" class="send" aria-label={VISION.ask} disabled={!ready}>
          <Icon name="send" />
        </button>
      )}
    </form>
  );
}
