//! Counts the steps and the memory of one rendering, and stops it at its limits. Knows no values.

use std::cell::Cell;
use std::rc::Rc;

use crate::util::limits::{MAX_TEMPLATE_MEMORY, MAX_TEMPLATE_STEPS, MAX_TEMPLATE_TEXT};

/// Why a template failed. The interpreter knows the line.
#[derive(Debug)]
pub(in super::super) struct Fault(pub String);

/// Result of what a template does.
pub(in super::super) type Outcome<T> = Result<T, Fault>;

/// Creates a fault.
pub(super) fn fault<T>(reason: impl Into<String>) -> Outcome<T> {
    Err(Fault(reason.into()))
}

/// Steps and bytes of one rendering.
#[derive(Debug, Default)]
pub(super) struct Meter {
    steps: Cell<u64>,
    live: Cell<usize>,
}

impl Meter {
    /// Counts steps.
    pub fn work(&self, steps: usize) -> Outcome<()> {
        let all = self.steps.get().saturating_add(steps as u64);
        self.steps.set(all);
        if all > MAX_TEMPLATE_STEPS {
            return fault(format!(
                "it needs more than {MAX_TEMPLATE_STEPS} steps; a template of a chat model needs a few thousand"
            ));
        }
        Ok(())
    }

    /// Counts the steps of reading `bytes` of text.
    pub fn read(&self, bytes: usize) -> Outcome<()> {
        self.work(bytes / 16)
    }

    fn take(&self, bytes: usize) -> Outcome<()> {
        let all = self.live.get().saturating_add(bytes);
        if all > MAX_TEMPLATE_MEMORY {
            return fault(format!(
                "its values need more than {} MB",
                MAX_TEMPLATE_MEMORY >> 20
            ));
        }
        self.live.set(all);
        Ok(())
    }
}

/// Bytes that a value holds; dropping it gives them back.
#[derive(Debug)]
pub(super) struct Hold {
    meter: Rc<Meter>,
    bytes: usize,
}

impl Hold {
    pub fn new(meter: &Rc<Meter>) -> Hold {
        Hold {
            meter: Rc::clone(meter),
            bytes: 0,
        }
    }

    /// Holds this many bytes more.
    pub fn grow(&mut self, bytes: usize) -> Outcome<()> {
        self.meter.take(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    pub fn meter(&self) -> &Rc<Meter> {
        &self.meter
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let live = self.meter.live.get();
        self.meter.live.set(live.saturating_sub(self.bytes));
    }
}

/// A text under construction, within the limits.
#[derive(Debug)]
pub(super) struct MeteredText {
    text: String,
    hold: Hold,
}

/// What each text holds besides its bytes.
const TEXT_OVERHEAD: usize = 64;

impl MeteredText {
    pub fn new(meter: &Rc<Meter>) -> MeteredText {
        MeteredText {
            text: String::new(),
            hold: Hold::new(meter),
        }
    }

    /// Appends text.
    pub fn push_str(&mut self, text: &str) -> Outcome<()> {
        let length = self.text.len() + text.len();
        if length > MAX_TEMPLATE_TEXT {
            return fault(format!(
                "a text is longer than {} MB",
                MAX_TEMPLATE_TEXT >> 20
            ));
        }
        // Copying is cheap, but not free.
        self.hold.meter.work(text.len() / 256)?;
        self.hold.grow(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    /// Appends a character.
    pub fn push(&mut self, c: char) -> Outcome<()> {
        self.push_str(c.encode_utf8(&mut [0; 4]))
    }

    /// Appends a character this many times.
    pub fn fill(&mut self, c: char, count: usize) -> Outcome<()> {
        let bytes = count.saturating_mul(c.len_utf8());
        if bytes > MAX_TEMPLATE_TEXT {
            return fault(format!(
                "a text is longer than {} MB",
                MAX_TEMPLATE_TEXT >> 20
            ));
        }
        self.push_str(&String::from(c).repeat(count))
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn meter(&self) -> &Rc<Meter> {
        self.hold.meter()
    }

    /// Ends the text.
    pub fn finish(mut self) -> Outcome<Text> {
        self.hold.grow(TEXT_OVERHEAD)?;
        Ok(Text {
            text: self.text,
            _hold: self.hold,
        })
    }

    /// Returns the text, which the meter no longer counts.
    pub fn into_string(self) -> String {
        self.text
    }
}

/// A text with the memory it holds.
#[derive(Debug)]
pub(super) struct Text {
    text: String,
    _hold: Hold,
}

impl std::ops::Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}
