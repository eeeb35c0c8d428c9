/** The Train tab: a text, a LoRA adapter of the chat model that learns it, and what the model writes before and after. */

import { useSignal } from "@preact/signals";
import type { Model } from "jerboa";
import type { TargetedEvent } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { chatAdapter } from "../chat/adapter-store";
import { chatSlot } from "../chat/slot";
import { bytes, parameters, rate } from "../format";
import { BUNDLED_CHAT, CHAT_SUGGESTIONS } from "../model/catalog";
import { ModelStage } from "../model/stage";
import { WrongModel } from "../model/wrong-model";
import { save } from "../ui/save";
import { CHAT, COMPOSER, HUB, MESSAGE, TRAIN, UI } from "../strings";
import { textFileProblem } from "../text-file";
import { refocus } from "../ui/focus";
import { Icon } from "../ui/icon";
import { Notice } from "../ui/notice";
import { Curve } from "./curve";
import type { TrainingText } from "./data";
import { EXAMPLE } from "./example";
import { MIN_SETTINGS, settingsFor, TrainingState, type TrainingSettings } from "./training";

// Outside the component: switching tabs keeps the run and its results.
const training = new TrainingState();
/** Codes whose errors have another remedy in a training. */
const REASONS: Readonly<Record<string, string>> = { out_of_memory: "training_memory", chat_template: "training_template" };

export function TrainTab() {
  useEffect(() => {
    if (chatSlot.idle) void chatSlot.load(chatSlot.lastRequest.peek() ?? BUNDLED_CHAT);
  }, []);
  return (
    <ModelStage
      slot={chatSlot}
      title={TRAIN.title}
      bundled={{ wanted: BUNDLED_CHAT, note: CHAT.bundledNote, size: "1 MB" }}
      suggestions={CHAT_SUGGESTIONS}
      hubTask="text-generation"
      facts={({ info }) => [HUB.parameters(parameters(info.parameters)), bytes(info.bytes.weights)].join(" · ")}
    >
      {(model, choose) => model && <Desk key={model.info.model} model={model} choose={choose} />}
    </ModelStage>
  );
}

function Desk({ model, choose }: { model: Model; choose: () => void }) {
  if (model.info.task !== "generate") {
    return (
      <WrongModel title={TRAIN.wrongTask(model.info.model)} choose={choose}>
        {TRAIN.chooseText}
      </WrongModel>
    );
  }
  return (
    <div class="desk">
      <div class="desk-side">
        <Data model={model} />
      </div>
      <div class="desk-main">
        {training.error.value && <Notice title={TRAIN.failed} error={training.error.value} reason={REASONS[training.error.value.code]} />}
        <Losses />
        <Samples />
        <Result model={model} />
      </div>
    </div>
  );
}

function Data({ model }: { model: Model }) {
  const text = useSignal<TrainingText>({ name: "", content: EXAMPLE });
  const settings = useSignal<TrainingSettings>(settingsFor(model));
  const problem = useSignal("");
  const id = useId();
  const busy = training.running.value;

  const pick = async (event: TargetedEvent<HTMLInputElement>): Promise<void> => {
    const input = event.currentTarget;
    const file = input.files?.[0];
    if (!file) return;
    problem.value = await textFileProblem(file);
    if (!problem.value) text.value = { name: file.name, content: await file.text() };
    input.value = "";
  };
  const remove = (): void => {
    text.value = { name: "", content: EXAMPLE };
    refocus(`[id="${id}"]`);
  };
  return (
    <section class="panel" aria-label={TRAIN.data}>
      <p class="hint">{TRAIN.intro}</p>
      {text.value.name ? (
        <div class="row">
          <Icon name="file" />
          <span class="grow document-name" dir="auto">{text.value.name}</span>
          <button type="button" class="icon-button" aria-label={COMPOSER.remove(text.value.name)} disabled={busy} onClick={remove}>
            <Icon name="trash" />
          </button>
        </div>
      ) : (
        <div class="group">
          <label for={id}>{TRAIN.text}</label>
          <textarea id={id} rows={7} dir="auto" value={text.value.content} disabled={busy} onInput={(e) => (text.value = { name: "", content: e.currentTarget.value })} />
        </div>
      )}
      <label class="file-button">
        <Icon name="file" />
        {TRAIN.open}
        <input type="file" accept=".txt,.md,.jsonl,text/plain" disabled={busy} onChange={(event) => void pick(event)} />
      </label>
      {problem.value && <p class="hint" role="alert">{problem}</p>}
      <details class="train-settings">
        <summary>{TRAIN.settings}</summary>
        <div class="fields fields-two">
          <Setting name="epochs" label={TRAIN.epochs} step={1} settings={settings.value} onChange={(next) => (settings.value = next)} />
          <Setting name="rank" label={TRAIN.rank} step={1} settings={settings.value} onChange={(next) => (settings.value = next)} />
          <Setting name="learningRate" label={TRAIN.learningRate} step="any" settings={settings.value} onChange={(next) => (settings.value = next)} />
          <Setting name="maxLength" label={TRAIN.maxLength} step={1} settings={settings.value} onChange={(next) => (settings.value = next)} />
        </div>
      </details>
      <div class="row">
        {busy ? (
          <button type="button" class="secondary" onClick={() => training.stop()}>
            {UI.stop}
          </button>
        ) : (
          <button type="button" class="primary" disabled={!text.value.content.trim()} onClick={() => void training.start(model, text.value, settings.value)}>
            {TRAIN.start}
          </button>
        )}
      </div>
    </section>
  );
}

interface SettingProps {
  name: keyof TrainingSettings;
  label: string;
  step: number | "any";
  settings: TrainingSettings;
  onChange: (next: TrainingSettings) => void;
}

function Setting({ name, label, step, settings, onChange }: SettingProps) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <input id={id} type="number" inputMode="decimal" min={MIN_SETTINGS[name]} step={step} value={settings[name]} onInput={(e) => onChange({ ...settings, [name]: e.currentTarget.value })} />
    </div>
  );
}

function Losses() {
  const { plan, progress, stage, running } = training;
  const panel = useRef<HTMLElement>(null);
  // On phones the losses are below the data.
  useEffect(() => {
    if (running.value) panel.current?.scrollIntoView({ block: "nearest" });
  }, [running.value]);
  const steps = plan.value?.steps ?? 0;
  const last = progress.value.at(-1);
  if (!running.value && !last) return <section class="panel"><p class="hint">{TRAIN.begin}</p></section>;
  const share = stage.value || !last ? undefined : last.step / steps;
  const what = stage.value || TRAIN.progress(last?.step ?? 0, steps);
  return (
    <section ref={panel} class="panel working" aria-label={TRAIN.losses}>
      <div class="row">
        <span class="grow">
          {what}
          {last && last.step > 0 && <span class="muted">{` ${MESSAGE.rate(rate(last.tokensPerSecond))}`}</span>}
        </span>
      </div>
      {running.value && (
        <div class={share === undefined ? "bar bar-open" : "bar"} role="progressbar" aria-label={what} aria-valuenow={share === undefined ? undefined : Math.round(share * 100)}>
          <div style={share === undefined ? undefined : { width: `${share * 100}%` }} />
        </div>
      )}
      {progress.value.length > 1 && <Curve progress={progress.value} steps={steps} />}
      {plan.value && <p class="hint">{TRAIN.takes(bytes(plan.value.memory.activations + plan.value.memory.trained + plan.value.memory.frozen), plan.value.sequences)}</p>}
    </section>
  );
}

function Samples() {
  const sample = training.sample.value;
  if (!sample) return null;
  return (
    <section class="panel" aria-label={TRAIN.samples}>
      <h2>{TRAIN.samples}</h2>
      <dl class="samples">
        <dt>{TRAIN.before}</dt>
        <dd dir="auto">
          <strong>{sample.prompt}</strong> {sample.before}
        </dd>
        {sample.after && (
          <>
            <dt>{TRAIN.after}</dt>
            <dd dir="auto">
              <strong>{sample.prompt}</strong> {sample.after}
            </dd>
          </>
        )}
      </dl>
    </section>
  );
}

function Result({ model }: { model: Model }) {
  const finished = training.finished.value;
  if (!finished || finished.model !== model) return null;
  const use = (): void => {
    chatAdapter.value = { model, name: finished.name };
    location.hash = "#chat";
  };
  return (
    <section class="panel" aria-label={TRAIN.adapter}>
      <h2>{TRAIN.adapter}</h2>
      <p class="hint">{TRAIN.adapterHint(bytes(finished.adapter.bytes))}</p>
      <div class="row train-result">
        <button type="button" class="primary" onClick={use}>
          <Icon name="send" />
          {TRAIN.useInChat}
        </button>
        {finished.adapter.files.map((file) => (
          <button key={file.name} type="button" class="secondary" onClick={() => save(file.name, file)}>
            {TRAIN.download(file.name)}
          </button>
        ))}
      </div>
    </section>
  );
}
