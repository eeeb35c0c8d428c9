//! Transcription events: each final segment once, and partial text in between.

use super::request::Heard;
use crate::audio::formats::{Segment, Transcript};
use crate::audio::{RATE, guard};
use crate::task::parts::TextParts;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

/// Converts samples at 16 kHz to seconds.
pub(super) fn seconds(samples: usize) -> f64 {
    samples as f64 / f64::from(RATE)
}

/// Emits transcription events to a callback.
pub(super) struct Teller<'a> {
    on_heard: RefCell<&'a mut dyn FnMut(&Heard)>,
    text: Rc<TextParts>,
    first_time: u32,
    /// Whether to emit partial text.
    partials: bool,
    /// Whether tokens include timestamps.
    timed: bool,
    total: f64,
    /// Number of emitted final segments.
    settled: Cell<usize>,
    /// The last emitted partial text.
    standing: RefCell<String>,
}

/// A window that is being decoded.
pub(super) struct Under<'a> {
    /// The transcript before this window.
    pub out: &'a Transcript,
    pub window: Range<usize>,
    /// Whether decoded tokens are final: no retries and no overlapping window.
    pub safe: bool,
}

impl<'a> Teller<'a> {
    pub fn new(
        on_heard: &'a mut dyn FnMut(&Heard),
        text: Rc<TextParts>,
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
            settled: Cell::new(0),
            standing: RefCell::default(),
        }
    }

    /// Decodes tokens to text as the transcript joins it. With timestamps, a space separates segments.
    fn words(&self, ids: &[u32]) -> String {
        let Ok(tokenizer) = self.text.tokenizer() else { return String::new() };
        let spoken: Vec<u32>;
        let ids = if self.timed {
            ids
        } else {
            spoken = ids.iter().copied().filter(|id| *id < self.first_time).collect();
            &spoken
        };
        let pieces = ids.split(|id| *id >= self.first_time).filter(|ids| !ids.is_empty());
        join(pieces.map(|ids| tokenizer.decode(ids, true)))
    }

    /// Returns how many of the tokens are final, whatever follows.
    fn stable(&self, ids: &[u32]) -> usize {
        if !self.timed {
            return ids.len() - guard::loose(ids);
        }
        // Tokens after the last closed segment may be decoded again.
        let is_time = |at: usize| ids[at] >= self.first_time;
        (1..ids.len()).rev().find(|at| is_time(*at) && is_time(at - 1)).unwrap_or(0)
    }

    /// Emits the new final segments up to index `settled`.
    pub fn settle(&self, out: &Transcript, settled: usize, done: usize) {
        for segment in &out.segments[self.settled.get()..settled.max(self.settled.get())] {
            let Segment { text, start, end, .. } = segment;
            self.tell(text.clone(), *start..*end, done, None);
        }
        self.settled.set(settled.max(self.settled.get()));
        if self.partials && !self.standing.borrow().is_empty() {
            let text = self.unsettled(out);
            let start = out.segments.get(self.settled.get()).map_or(seconds(done), |segment| segment.start);
            self.stand(text, String::new(), start..seconds(done), done);
        }
    }

    /// Returns the text of segments that may still change.
    fn unsettled(&self, out: &Transcript) -> String {
        join(out.segments.iter().skip(self.settled.get()).map(|segment| segment.text.clone()))
    }

    /// Emits the partial text of a window's tokens so far.
    pub fn decoding(&self, under: &Under<'_>, ids: &[u32]) {
        if !self.partials {
            return;
        }
        let before = self.unsettled(under.out);
        let text = join([before.clone(), self.words(ids)].into_iter());
        let stable = if under.safe && before.is_empty() { self.words(&ids[..self.stable(ids)]) } else { String::new() };
        // The last character may be incomplete.
        let stable = stable.trim_end_matches('\u{fffd}').trim_end();
        let stable = if text.starts_with(stable) { stable.to_string() } else { String::new() };
        let start = under.out.segments.get(self.settled.get()).map_or(seconds(under.window.start), |s| s.start);
        self.stand(text, stable, start..seconds(under.window.end), under.window.start);
    }

    /// Replaces the partial text and emits it if it changed.
    fn stand(&self, text: String, stable: String, span: Range<f64>, done: usize) {
        if *self.standing.borrow() != text {
            self.standing.replace(text.clone());
            self.tell(text, span, done, Some(stable));
        }
    }

    fn tell(&self, text: String, span: Range<f64>, done: usize, stable: Option<String>) {
        let done = seconds(done).min(self.total);
        let heard = Heard { text, start: span.start, end: span.end, done, total: self.total, stable };
        // Events during a running callback are dropped.
        if let Ok(mut on_heard) = self.on_heard.try_borrow_mut() {
            on_heard(&heard);
        }
    }
}

/// Joins strings as [`Transcript::text`] does.
fn join(texts: impl Iterator<Item = String>) -> String {
    texts.fold(String::new(), |mut all, text| {
        let text = text.trim();
        if !all.is_empty() && !text.is_empty() {
            all.push(' ');
        }
        all.push_str(text);
        all
    })
}
