//! What a transcription tells on its way: settled stretches, each once, and between them the text as far as it is decoded.

use super::request::Heard;
use crate::audio::formats::{Segment, Transcript};
use crate::audio::{RATE, guard};
use crate::task::parts::TextParts;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

/// Seconds of so many samples.
pub(super) fn seconds(samples: usize) -> f64 {
    samples as f64 / f64::from(RATE)
}

/// Tells a caller what is heard.
pub(super) struct Teller<'a> {
    on_heard: RefCell<&'a mut dyn FnMut(&Heard)>,
    text: Rc<TextParts>,
    first_time: u32,
    /// Whether text is told while it is decoded.
    partials: bool,
    /// Whether the text is that of time tokens.
    timed: bool,
    total: f64,
    /// Segments that were told.
    settled: Cell<usize>,
    /// The partial text that stands.
    standing: RefCell<String>,
}

/// A window whose text is on its way.
pub(super) struct Under<'a> {
    /// What was heard before.
    pub out: &'a Transcript,
    pub window: Range<usize>,
    /// Whether tokens stay as they come: they are not drawn again, and no other window hears the same.
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

    /// The text of tokens as a transcript joins it: where it is timed, what time tokens part is parted by a space.
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

    /// How many of the tokens stay, however the text goes on.
    fn stable(&self, ids: &[u32]) -> usize {
        if !self.timed {
            return ids.len() - guard::loose(ids);
        }
        // What is behind the last stretch that closed may be heard again.
        let is_time = |at: usize| ids[at] >= self.first_time;
        (1..ids.len()).rev().find(|at| is_time(*at) && is_time(at - 1)).unwrap_or(0)
    }

    /// Tells the segments that came since, up to `settled`.
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

    /// The text of segments that may still change.
    fn unsettled(&self, out: &Transcript) -> String {
        join(out.segments.iter().skip(self.settled.get()).map(|segment| segment.text.clone()))
    }

    /// Tells what a window's tokens say so far.
    pub fn decoding(&self, under: &Under<'_>, ids: &[u32]) {
        if !self.partials {
            return;
        }
        let before = self.unsettled(under.out);
        let text = join([before.clone(), self.words(ids)].into_iter());
        let stable = if under.safe && before.is_empty() { self.words(&ids[..self.stable(ids)]) } else { String::new() };
        // The last character may wait for its other bytes.
        let stable = stable.trim_end_matches('\u{fffd}').trim_end();
        let stable = if text.starts_with(stable) { stable.to_string() } else { String::new() };
        let start = under.out.segments.get(self.settled.get()).map_or(seconds(under.window.start), |s| s.start);
        self.stand(text, stable, start..seconds(under.window.end), under.window.start);
    }

    /// Puts a partial text in the place of the one before.
    fn stand(&self, text: String, stable: String, span: Range<f64>, done: usize) {
        if *self.standing.borrow() != text {
            self.standing.replace(text.clone());
            self.tell(text, span, done, Some(stable));
        }
    }

    fn tell(&self, text: String, span: Range<f64>, done: usize, stable: Option<String>) {
        let done = seconds(done).min(self.total);
        let heard = Heard { text, start: span.start, end: span.end, done, total: self.total, stable };
        // A callback that calls back would find the cell taken: it hears nothing.
        if let Ok(mut on_heard) = self.on_heard.try_borrow_mut() {
            on_heard(&heard);
        }
    }
}

/// Texts in a row as [`Transcript::text`] joins them.
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
