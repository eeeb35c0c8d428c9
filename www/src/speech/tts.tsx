/** The TTS tab: a text-to-speech model, a text, and its audio while it is generated. */

import { useSignal } from "@preact/signals";
import type { Model } from "jerboa";
import type { TargetedSubmitEvent } from "preact";
import { useEffect } from "preact/hooks";
import { bytes, milliseconds, parameters } from "../format";
import { CODEC, TTS_SUGGESTIONS } from "../model/catalog";
import { HUB, TTS, UI } from "../strings";
import { useDoubleClickGuard } from "../ui/double-click";
import { Icon } from "../ui/icon";
import { Notice } from "../ui/notice";
import { codec, ttsSlot } from "./slots";
import { Stage } from "./stage";
import { save } from "../ui/save";
import { peaks, SynthesisState } from "./synthesis";
import { locale } from "../language";

const slot = ttsSlot;
const synthesis = new SynthesisState();
/** Bars of the waveform. */
const BARS = 160;

export function TtsTab() {
  useEffect(() => {
    const chosen = slot.lastRequest.peek();
    if (slot.idle && chosen) void slot.load(chosen);
  }, []);
  return (
    <Stage slot={slot} task="speak" title={TTS.title} suggestions={TTS_SUGGESTIONS} empty={TTS.empty} wrong={TTS.wrongTask} facts={facts} aside={slot.current.value ? undefined : <Codec />}>
      {(model) => (
        <div class="desk desk-one">
          <div class="desk-main">
            {synthesis.error.value && <Notice title={TTS.failed} error={synthesis.error.value} />}
            <Words model={model} />
            <Sound />
          </div>
        </div>
      )}
    </Stage>
  );
}

function facts({ info }: Model): string {
  return [HUB.parameters(parameters(info.parameters)), bytes(info.bytes.weights), info.tts ? `${info.tts.sampleRate.toLocaleString(locale())} Hz` : ""].filter(Boolean).join(" · ");
}

/** The codec of a model that generates codec tokens. */
function Codec() {
  return (
    <section class="panel codec" aria-label={TTS.codecLabel}>
      <div class="group">
        <label for="codec">{TTS.codecLabel}</label>
        <input id="codec" type="text" placeholder={CODEC.id} autocomplete="off" spellcheck={false} value={codec} onInput={(e) => (codec.value = e.currentTarget.value)} />
      </div>
      <p class="hint">{TTS.codec(CODEC.licence)}</p>
    </section>
  );
}

function Words({ model }: { model: Model }) {
  const words = useSignal(synthesis.made.peek()?.text ?? "");
  const name = useSignal("");
  const { started, guard } = useDoubleClickGuard();
  const submit = (event: TargetedSubmitEvent<HTMLFormElement>): void => {
    event.preventDefault();
    started();
    void synthesis.speak(model, words.value, name.value.trim());
  };
  const on = synthesis.speaking.value;
  return (
    <section class="panel" aria-label={TTS.text}>
      <form class="group" onSubmit={submit}>
        <div class="group">
          <label for="words">{TTS.textLabel}</label>
          <textarea
            id="words"
            rows={4}
            dir="auto"
            placeholder={TTS.placeholder}
            value={words}
            onInput={(e) => (words.value = e.currentTarget.value)}
            onKeyDown={(e) => (e.key === "Enter" && (e.ctrlKey || e.metaKey) ? e.currentTarget.form?.requestSubmit() : undefined)}
          />
        </div>
        <div class="group">
          <label for="voice">{TTS.voice}</label>
          <input id="voice" type="text" placeholder={TTS.voiceHint} autocomplete="off" value={name} onInput={(e) => (name.value = e.currentTarget.value)} />
        </div>
        <div class="row">
          {on ? (
            <button type="button" class="secondary" onClick={guard(() => synthesis.stop())}>
              {UI.stop}
            </button>
          ) : (
            <button type="submit" class="primary" disabled={!words.value.trim()}>
              {TTS.speak}
            </button>
          )}
        </div>
      </form>
    </section>
  );
}

function Sound() {
  const made = synthesis.made.value;
  if (!made) return synthesis.speaking.value ? <p class="hint">{TTS.begins}</p> : null;
  return (
    <section class="panel" aria-label={TTS.audio}>
      <svg class="wave" viewBox={`0 0 ${BARS} 40`} preserveAspectRatio="none" role="img" aria-label={TTS.waveform(made.seconds.toFixed(1))}>
        {peaks(made.pieces, BARS).map((peak, i) => (
          <rect key={i} x={i + 0.15} width={0.7} y={20 - Math.max(0.5, peak * 19)} height={Math.max(1, peak * 38)} />
        ))}
      </svg>
      <div class="panel-head">
        <p class="hint">{TTS.made(made.seconds.toFixed(1), milliseconds(made.first), synthesis.speaking.value ? "" : milliseconds(made.took))}</p>
        <div class="row">
          <button type="button" class="quiet-button" disabled={synthesis.speaking.value} onClick={() => synthesis.replay()}>
            <Icon name="again" />
            {TTS.again}
          </button>
          <button type="button" class="quiet-button" disabled={synthesis.speaking.value} onClick={() => save("speech.wav", wavOf(made.pieces, made.sampleRate))}>
            <Icon name="file" />
            WAV
          </button>
        </div>
      </div>
    </section>
  );
}

/** A 16-bit WAV file. */
function wavOf(pieces: Float32Array[], rate: number): Blob {
  const count = pieces.reduce((sum, piece) => sum + piece.length, 0);
  const view = new DataView(new ArrayBuffer(44 + count * 2));
  const words: [number, string | number, number?][] = [
    [0, "RIFF"], [4, 36 + count * 2, 4], [8, "WAVEfmt "], [16, 16, 4], [20, 1, 2], [22, 1, 2], [24, rate, 4], [28, rate * 2, 4], [32, 2, 2], [34, 16, 2], [36, "data"], [40, count * 2, 4],
  ];
  for (const [at, value, size] of words) {
    if (typeof value === "string") [...value].forEach((c, i) => view.setUint8(at + i, c.charCodeAt(0)));
    else if (size === 4) view.setUint32(at, value, true);
    else view.setUint16(at, value, true);
  }
  let at = 44;
  for (const piece of pieces) for (const sample of piece) view.setInt16((at += 2) - 2, Math.round(Math.max(-1, Math.min(1, sample)) * 32_767), true);
  return new Blob([view.buffer], { type: "audio/wav" });
}
