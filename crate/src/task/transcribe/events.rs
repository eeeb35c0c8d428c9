//! Transcription events: each final segment once, and partial text in between.

use super::request::SegmentEvent;
use crate::audio::subtitles::{Transcript, TranscriptSegment};
use crate::audio::{SAMPLE_RATE, repetition};
use crate::task::text_pipeline::TextPipeline;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

/// Converts samples at 16 kHz to seconds.
pub(super) fn seconds(samples: usize) -> f64 {
    samples as f64 / f64::from(SAMPLE_RATE)
}

/// Emits transcription events to a callback.
pub(super) struct EventEmitter<'a> {
    on_heard: RefCell<&'a mut dyn FnMut(&SegmentEvent)>,
    text: Rc<TextPipeline>,
    first_time: u32,
    /// Whether to emit partial text.
    partials: bool,
    /// Whether tokens include timestamps.
    timed: bool,
    total: f64,
    /// Number of emitted final segments.
    emitted: Cell<usize>,
    /// The last emitted partial text.
    last_partial: RefCell<String>,
}

/// A window that is being decoded.
pub(super) struct WindowContext<'a> {
    /// The transcript before this window.
    pub out: &'a Transcript,
    pub window: Range<usize>,
    /// Whether decoded tokens are final: no retries and no overlapping window.
    pub is_final: bool,
}

impl<'a> EventEmitter<'a> {
    pub fn new(
        on_heard: &'a mut dyn FnMut(&SegmentEvent),
        text: Rc<TextPipeline>,
        first_time: u32,
        (partials, timed): (bool, bool),
        total: f64,
    ) -> Self {
        Self {
            on_heard: RefCell::new(on_heard),
            text,
            first_time,
            partials,
            timed,
            total,
            emitted: Cell::new(0),
            last_partial: RefCell::default(),
        }
    }

    /// Decodes tokens to text as the transcript joins it. With timestamps, a space separates
    /// segments.
    fn decode_text(&self, ids: &[u32]) -> String {
        let Ok(tokenizer) = self.text.tokenizer() else {
            return String::new();
        };
        let spoken: Vec<u32>;
        let ids = if self.timed {
            ids
        } else {
            spoken = ids
                .iter()
                .copied()
                .filter(|id| *id < self.first_time)
                .collect();
            &spoken
        };
        let pieces = ids
            .split(|id| *id >= self.first_time)
            .filter(|ids| !ids.is_empty());
        join_trimmed(pieces.map(|ids| tokenizer.decode(ids, true)))
    }

    /// Returns how many of the tokens are final, whatever follows.
    fn stable_len(&self, ids: &[u32]) -> usize {
        if !self.timed {
            return ids.len() - repetition::unstable_len(ids);
        }
        // Tokens after the last closed segment may be decoded again.
        let is_time = |at: usize| ids[at] >= self.first_time;
        (1..ids.len())
            .rev()
            .find(|at| is_time(*at) && is_time(at - 1))
            .unwrap_or(0)
    }

    /// Emits the new final segments up to index `settled`.
    pub fn emit_final(&self, out: &Transcript, settled: usize, done: usize) {
        for segment in &out.segments[self.emitted.get()..settled.max(self.emitted.get())] {
            let TranscriptSegment {
                text, start, end, ..
            } = segment;
            self.emit(text.clone(), *start..*end, done, None);
        }
        self.emitted.set(settled.max(self.emitted.get()));
        if self.partials && !self.last_partial.borrow().is_empty() {
            let text = self.pending_text(out);
            let start = out
                .segments
                .get(self.emitted.get())
                .map_or(seconds(done), |segment| segment.start);
            self.replace_partial(text, String::new(), start..seconds(done), done);
        }
    }

    /// Returns the text of segments that may still change.
    fn pending_text(&self, out: &Transcript) -> String {
        join_trimmed(
            out.segments
                .iter()
                .skip(self.emitted.get())
                .map(|segment| segment.text.clone()),
        )
    }

    /// Emits the partial text of a window's tokens so far.
    pub fn emit_partial(&self, under: &WindowContext<'_>, ids: &[u32]) {
        if !self.partials {
            return;
        }
        let before = self.pending_text(under.out);
        let text = join_trimmed([before.clone(), self.decode_text(ids)].into_iter());
        let stable = if under.is_final && before.is_empty() {
            self.decode_text(&ids[..self.stable_len(ids)])
        } else {
            String::new()
        };
        // The last character may be incomplete.
        let stable = stable.trim_end_matches('\u{fffd}').trim_end();
        let stable = if text.starts_with(stable) {
            stable.to_string()
        } else {
            String::new()
        };
        let start = under
            .out
            .segments
            .get(self.emitted.get())
            .map_or(seconds(under.window.start), |s| s.start);
        self.replace_partial(
            text,
            stable,
            start..seconds(under.window.end),
            under.window.start,
        );
    }

    /// Replaces the partial text and emits it if it changed.
    fn replace_partial(&self, text: String, stable: String, span: Range<f64>, done: usize) {
        if *self.last_partial.borrow() != text {
            self.last_partial.replace(text.clone());
            self.emit(text, span, done, Some(stable));
        }
    }

    fn emit(&self, text: String, span: Range<f64>, done: usize, stable: Option<String>) {
        let done = seconds(done).min(self.total);
        let event = SegmentEvent {
            text,
            start: span.start,
            end: span.end,
            done,
            total: self.total,
            stable,
        };
        // Events during a running callback are dropped.
        if let Ok(mut on_heard) = self.on_heard.try_borrow_mut() {
            on_heard(&event);
        }
    }
}

/// Joins strings as [`Transcript::text`] does.
fn join_trimmed(texts: impl Iterator<Item = String>) -> String {
    texts.fold(String::new(), |mut all, text| {
        let text = text.trim();
        if !all.is_empty() && !text.is_empty() {
            all.push(' ');
        }
        all.push_str(text);
        all
    })
}
