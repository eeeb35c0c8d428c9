/** Types of the contract about audio: transcription, listening and speech synthesis. */

/** A final segment of a transcript, and the progress so far (`done` of `total`), in seconds. */
export interface SegmentEvent {
  text: string;
  start: number;
  end: number;
  done: number;
  total: number;
}

/** The text decoded after the last final segment; replaces the previous partial text. */
export interface PartialEvent extends SegmentEvent {
  /** The prefix of `text` that will not change. */
  stable: string;
}

/** A complete transcript: the fields of OpenAI's `verbose_json`, plus subtitles. */
export interface Transcript {
  task: "transcribe" | "translate";
  /** Language code, if known. */
  language: string | null;
  /** Duration in seconds. */
  duration: number;
  text: string;
  segments: {
    id: number;
    start: number;
    end: number;
    text: string;
    tokens: number[];
    /** Null when log-probabilities were not requested. */
    avg_logprob: number | null;
    compression_ratio: number;
    no_speech_prob: number | null;
  }[];
  words?: { word: string; start: number; end: number }[];
  /** [start, end] in seconds where voice detection found speech but the model returned no words. */
  untranscribed?: [number, number][];
  /** English name of the language, if known. */
  languageName: string | null;
  srt: string;
  vtt: string;
}

/** The voice activity in the latest samples of a stream; positions count samples at 16 kHz. */
export interface VadEvent {
  level: number;
  /** Start of the current utterance. */
  start: number | null;
  /** Start and end of each finished utterance. */
  ended: [number, number][];
}

/** The result of a speech synthesis. */
export interface SynthesisResult {
  frames: number;
  /** Frames dropped because their codec tokens were out of order. */
  dropped: number;
  seconds: number;
  finishReason: "stop" | "length";
  firstMs: number | null;
  totalMs: number;
  ids: number[];
}
