/** The STT tab: a speech-to-text model, microphone and files, and the transcript. */

import { useSignal } from "@preact/signals";
import type { Model } from "jerboa";
import type { TargetedDragEvent, TargetedEvent } from "preact";
import { useEffect } from "preact/hooks";
import { bytes, parameters } from "../format";
import { ASR_SUGGESTIONS, SAMPLE_RECORDING } from "../model/catalog";
import { HUB, LOAD, STT, UI } from "../strings";
import { CopyButton } from "../ui/copy";
import { Icon } from "../ui/icon";
import { Notice } from "../ui/notice";
import { save } from "../ui/save";
import { TranscriptionState, clock } from "./transcription";
import { sttSlot } from "./slots";
import { Stage } from "./stage";
import { locale } from "../language";

// Outside the component: switching tabs keeps the model and the transcript.
const slot = sttSlot;
const transcription = new TranscriptionState();

export function SttTab() {
  useEffect(() => {
    const chosen = slot.lastRequest.peek();
    if (slot.idle && chosen) void slot.load(chosen);
  }, []);
  return (
    <Stage slot={slot} task="transcribe" title={STT.title} suggestions={ASR_SUGGESTIONS} empty={STT.empty} wrong={STT.wrongTask} facts={facts}>
      {(model) => (
        <div class="desk">
          <div class="desk-side">
            <Microphone model={model} />
            <File model={model} />
          </div>
          <div class="desk-main">
            {transcription.error.value && <Notice title={STT.failed} error={transcription.error.value} />}
            <Said />
          </div>
        </div>
      )}
    </Stage>
  );
}

function facts({ info }: Model): string {
  const languages = info.asr?.languages.length ?? 0;
  return [HUB.parameters(parameters(info.parameters)), bytes(info.bytes.weights), languages > 1 ? STT.languages(languages) : ""].filter(Boolean).join(" · ");
}

function Microphone({ model }: { model: Model }) {
  const on = transcription.listening.value;
  const languages = model.info.asr?.languages ?? [];
  return (
    <section class="panel" aria-label={STT.microphone}>
      <h2>{STT.microphone}</h2>
      <button type="button" class={on ? "secondary" : "primary"} disabled={transcription.work.value !== undefined} aria-pressed={on} onClick={() => (on ? transcription.stop() : void transcription.listen(model))}>
        {on ? STT.stop : STT.listen}
      </button>
      <div class="meter" role="meter" aria-label={STT.loudness} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(transcription.level.value * 100)}>
        <div style={{ width: `${transcription.level.value * 100}%` }} />
      </div>
      {languages.length > 1 && (
        <div class="group">
          <label for="language">{STT.language}</label>
          <select id="language" value={transcription.language} disabled={transcription.busy.value} onChange={(e) => (transcription.language.value = e.currentTarget.value)}>
            <option value="">{STT.detect}</option>
            {languages.map((code) => (
              <option key={code} value={code}>
                {nameOf(code)}
              </option>
            ))}
          </select>
        </div>
      )}
      <p class="hint">{STT.privacy}</p>
    </section>
  );
}

function nameOf(code: string): string {
  try {
    return new Intl.DisplayNames(locale(), { type: "language" }).of(code) ?? code;
  } catch {
    return code;
  }
}

function File({ model }: { model: Model }) {
  const over = useSignal(false);
  const take = (file: globalThis.File | undefined): void => {
    if (file) void transcription.open(model, file);
  };
  const problem = useSignal("");
  const sample = async (): Promise<void> => {
    problem.value = "";
    try {
      const response = await fetch(SAMPLE_RECORDING);
      if (!response.ok) throw new Error(String(response.status));
      take(new globalThis.File([await response.blob()], "inaugural-address.mp3", { type: "audio/mpeg" }));
    } catch {
      problem.value = STT.sampleFailed;
    }
  };
  const drop = (event: TargetedDragEvent<HTMLElement>): void => {
    event.preventDefault();
    over.value = false;
    take(event.dataTransfer?.files[0]);
  };
  const dragged = (event: TargetedDragEvent<HTMLElement>): void => {
    event.preventDefault();
    over.value = true;
  };
  const pick = (event: TargetedEvent<HTMLInputElement>): void => {
    const input = event.currentTarget;
    take(input.files?.[0]);
    input.value = "";
  };
  const work = transcription.work.value;
  const share = work?.total ? work.done / work.total : undefined;
  return (
    <section class={over.value ? "panel panel-over" : "panel"} aria-label={STT.file} onDragOver={dragged} onDragLeave={() => (over.value = false)} onDrop={drop}>
      <h2>{STT.file}</h2>
      <label class="file-button">
        <Icon name="file" />
        {STT.open}
        <input type="file" accept="audio/*,video/*,.wav,.mp3,.m4a,.ogg,.flac" disabled={transcription.busy.value} onChange={pick} />
      </label>
      {!work && (
        <>
          <button type="button" class="secondary" disabled={transcription.busy.value} onClick={() => void sample()}>
            {STT.sample}
          </button>
          <p class="hint">{problem.value || STT.sampleHint}</p>
        </>
      )}
      {work && (
        <>
          <div class="row">
            <span class="grow document-name">
              {work.name}
              {work.total > 0 && <span class="muted">{` ${LOAD.of(clock(work.done), clock(work.total))}`}</span>}
            </span>
            <button type="button" class="quiet-button" onClick={() => transcription.stop()}>
              {UI.stop}
            </button>
          </div>
          <div class={share === undefined ? "bar bar-open" : "bar"} role="progressbar" aria-label={STT.transcribing} aria-valuenow={share === undefined ? undefined : Math.round(share * 100)}>
            <div style={share === undefined ? undefined : { width: `${share * 100}%` }} />
          </div>
        </>
      )}
    </section>
  );
}

function Said() {
  const lines = transcription.lines.value;
  const partial = transcription.partial.value;
  return (
    <section class="panel" aria-label={STT.transcript}>
      <div class="panel-head">
        <h2>{STT.transcript}</h2>
        {lines.length > 0 && (
          <div class="row">
            <CopyButton label={STT.copy} text={() => transcription.text.peek()} small />
            <button type="button" class="quiet-button" onClick={() => save("transcript.srt", new Blob([transcription.srt()], { type: "application/x-subrip" }))}>
              <Icon name="file" />
              SRT
            </button>
            <button type="button" class="quiet-button" disabled={transcription.busy.value} onClick={() => transcription.clear()}>
              {STT.clear}
            </button>
          </div>
        )}
      </div>
      {lines.length === 0 && !partial && !transcription.work.value && <p class="hint">{transcription.listening.value ? STT.speak : STT.begin}</p>}
      <ol class="said" aria-label={STT.segments}>
        {lines.map(({ start, text }, i) => (
          <li key={i}>
            <time>{clock(start)}</time>
            <span dir="auto">{text}</span>
          </li>
        ))}
        {partial && (
          <li class="said-partial" aria-live="off">
            <time>…</time>
            <span dir="auto">
              {partial.stable}
              <span class="muted">{partial.text.slice(partial.stable.length)}</span>
            </span>
          </li>
        )}
      </ol>
    </section>
  );
}
