/** OpenAI's `audio`: what hears and what speaks. */

import type { ModelInfo } from "./contract.js";
import type { Backend } from "./host.js";
import { Speech } from "./speech.js";
import { Transcriptions } from "./transcribe.js";

/** OpenAI's `audio`. */
export class Audio {
  /** Sound to text. */
  readonly transcriptions: Transcriptions;
  /** Sound to English text. */
  readonly translations: Transcriptions;
  /** Text to sound. */
  readonly speech: Speech;

  /** @internal */
  constructor(backend: Backend, info: ModelInfo) {
    this.transcriptions = new Transcriptions(backend, info, false);
    this.translations = new Transcriptions(backend, info, true);
    this.speech = new Speech(backend, info);
  }
}
