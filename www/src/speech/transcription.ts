/** Transcription state: microphone, file, and their transcript. */

import { computed, signal } from "@preact/signals";
import type { JerboaError, LiveTranscription, Model } from "jerboa";
import { JerboaError as Failure } from "jerboa";
import { asError } from "../errors";
import { announce } from "../ui/announce";
import { MICROPHONE, STT } from "../strings";

/** A final segment of the transcript. */
export interface TranscriptLine {
  start: number;
  end: number;
  text: string;
}

/** The partial text of the current segment. */
export interface PartialLine {
  text: string;
  stable: string;
}

/** The file being transcribed. */
export interface FileProgress {
  name: string;
  done: number;
  total: number;
}

export class TranscriptionState {
  readonly lines = signal<TranscriptLine[]>([]);
  readonly partial = signal<PartialLine | undefined>(undefined);
  readonly level = signal(0);
  readonly listening = signal(false);
  readonly work = signal<FileProgress | undefined>(undefined);
  readonly error = signal<JerboaError | undefined>(undefined);
  readonly language = signal("");
  readonly text = computed(() => this.lines.value.map(({ text }) => text).join("\n"));
  readonly busy = computed(() => this.listening.value || this.work.value !== undefined);
  #controller: AbortController | undefined;
  #stream: MediaStream | undefined;
  #live: LiveTranscription | undefined;

  /** Transcribes the microphone until stopped. */
  async listen(model: Model): Promise<void> {
    if (this.busy.peek()) return;
    this.error.value = undefined;
    let stream: MediaStream;
    try {
      if (!navigator.mediaDevices?.getUserMedia) throw new Failure("request", MICROPHONE.unavailable);
      stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1, echoCancellation: true, noiseSuppression: true } });
    } catch (thrown) {
      this.error.value = microphoneError(thrown);
      return;
    }
    this.#stream = stream;
    const controller = this.#begin();
    this.listening.value = true;
    announce(STT.listening);
    // Continue the timestamps after the existing transcript.
    const offset = this.lines.peek().at(-1)?.end ?? 0;
    try {
      const options = { ...this.#language(), signal: controller.signal, onLevel: (level: number) => void (this.level.value = level) };
      this.#live = model.listen(stream, options);
      for await (const { text, stable, final, start, end } of this.#live) {
        this.partial.value = final ? undefined : { text, stable };
        if (!final) continue;
        this.lines.value = [...this.lines.peek(), { start: offset + start, end: offset + end, text }];
        announce(text);
      }
    } catch (thrown) {
      if (!controller.signal.aborted) this.error.value = asError(thrown);
    } finally {
      this.#over();
    }
  }

  /** Transcribes a file. */
  async open(model: Model, file: File): Promise<void> {
    if (this.busy.peek()) return;
    const controller = this.#begin();
    this.lines.value = [];
    this.work.value = { name: file.name, done: 0, total: 0 };
    try {
      const timed = model.info.capabilities?.includes("timestamps") === true;
      const made = await model.transcribe(file, {
        ...this.#language(),
        ...(timed ? { timestamps: "segment" as const } : {}),
        signal: controller.signal,
        onPartial: ({ text, stable }) => (this.partial.value = text ? { text, stable } : undefined),
        onSegment: ({ text, start, end, done, total }) => {
          this.work.value = { name: file.name, done, total };
          this.partial.value = undefined;
          if (text.trim()) this.lines.value = [...this.lines.peek(), { start, end, text: text.trim() }];
        },
      });
      announce(made.text ? STT.transcribed(file.name) : STT.nothing(file.name));
      if (!made.text) this.error.value = new Failure("request", STT.nothing(file.name));
    } catch (thrown) {
      if (!controller.signal.aborted) this.error.value = asError(thrown);
    } finally {
      this.#over();
    }
  }

  /** Stops the running operation; the transcript is kept. */
  stop(): void {
    if (!this.#live) return this.#controller?.abort();
    // What was said is transcribed to its end.
    this.#live.stop();
    this.#stream?.getTracks().forEach((track) => track.stop());
  }

  clear(): void {
    this.lines.value = [];
    this.partial.value = undefined;
    this.error.value = undefined;
  }

  /** Subtitles of the transcript. */
  srt(): string {
    return this.lines
      .peek()
      .map(({ start, end, text }, i) => `${i + 1}\n${stamp(start)} --> ${stamp(end)}\n${text}\n`)
      .join("\n");
  }

  #language(): { language?: string } {
    return this.language.peek() ? { language: this.language.peek() } : {};
  }

  #begin(): AbortController {
    this.error.value = undefined;
    this.#controller = new AbortController();
    return this.#controller;
  }

  #over(): void {
    this.#stream?.getTracks().forEach((track) => track.stop());
    this.#stream = undefined;
    this.#live = undefined;
    this.listening.value = false;
    this.partial.value = undefined;
    this.work.value = undefined;
    this.level.value = 0;
  }
}

function microphoneError(thrown: unknown): JerboaError {
  const words = (MICROPHONE as Record<string, string>)[(thrown as Error)?.name];
  return words ? new Failure("request", words) : asError(thrown);
}

function stamp(seconds: number): string {
  const ms = Math.round(seconds * 1000);
  const two = (n: number): string => String(Math.floor(n)).padStart(2, "0");
  return `${two(ms / 3_600_000)}:${two((ms / 60_000) % 60)}:${two((ms / 1000) % 60)},${String(ms % 1000).padStart(3, "0")}`;
}

/** A time for display. */
export function clock(seconds: number): string {
  return `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
}
