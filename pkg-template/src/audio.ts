/** OpenAI's `audio` endpoints: transcriptions, translations and speech. */

import type { ModelInfo } from "./contract.js";
import type { Backend } from "./engine-calls.js";
import { Speech } from "./speech.js";
import { Transcriptions } from "./transcribe.js";

/** OpenAI's `audio`. */
export class Audio {
  /** Transcribes audio in its own language. */
  readonly transcriptions: Transcriptions;
  /** Transcribes audio into English. */
  readonly translations: Transcriptions;
  /** Synthesizes speech from text. */
  readonly speech: Speech;

  /** @internal */
  constructor(backend: Backend, info: ModelInfo) {
    this.transcriptions = new Transcriptions(backend, info, false);
    this.translations = new Transcriptions(backend, info, true);
    this.speech = new Speech(backend, info);
  }
}
