/** The part of the contract that is about sound. Knows names and types; nothing runs here. */

/** How sound is written down. */
export interface EngineTranscribeOptions {
  language?: string;
  translate?: boolean;
  timestamps?: "none" | "segment" | "word";
  prompt?: string;
  ids?: number[];
  temperatures?: number[];
  beams?: number;
  lengthPenalty?: number;
  maxTokens?: number;
  vad?: boolean;
  logprobs?: boolean;
  seed?: number;
  partials?: boolean;
}

/** A stretch of a transcript that will not change any more, and how far it has come, in seconds. */
export interface HeardEvent {
  text: string;
  start: number;
  end: number;
  done: number;
  total: number;
}

/** All text behind the last settled stretch, as far as it is decoded. It takes the place of the partial text before it. */
export interface PartialEvent extends HeardEvent {
  /** The beginning of `text` that will not change any more. */
  stable: string;
}

/** All that was heard: OpenAI's `verbose_json`, and its subtitles. */
export interface Transcript {
  task: "transcribe" | "translate";
  /** Code of the language, where it is known. */
  language: string | null;
  /** Seconds. */
  duration: number;
  text: string;
  segments: {
    id: number;
    start: number;
    end: number;
    text: string;
    tokens: number[];
    /** Null where they were not asked for. */
    avg_logprob: number | null;
    compression_ratio: number;
    no_speech_prob: number | null;
  }[];
  words?: { word: string; start: number; end: number }[];
  /** From and to in seconds, where voice detection found speech and the model no words. */
  unheard?: [number, number][];
  /** English name of the language, where it is known. */
  languageName: string | null;
  srt: string;
  vtt: string;
}

/** What came of the last samples of a stream; places count samples at 16 kHz. */
export interface ListenTurn {
  level: number;
  /** Where the utterance under way begins. */
  start: number | null;
  /** Utterances that are over. */
  ended: [number, number][];
}

/** How a text is spoken. */
export interface EngineSpeakOptions {
  input: string;
  ids?: number[];
  voice?: string;
  speaker?: number[];
  maxTokens?: number;
  grammar?: boolean;
  ignoreEnd?: boolean;
  temperature?: number;
  topP?: number;
  repetitionPenalty?: number;
  seed?: number;
}

/** What a speech came to. */
export interface Spoken {
  frames: number;
  /** Frames that were left out because their codes came out of turn. */
  dropped: number;
  seconds: number;
  finishReason: "stop" | "length";
  firstMs: number | null;
  totalMs: number;
  ids: number[];
}
