//! Progress of a load: phase, file, bytes, rate and time left. Reports at least four times a
//! second, even when nothing arrives. Does not depend on how bytes arrive.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;

use futures_util::future::{Either, select};

use crate::util::clock;
use crate::util::map::SortedMap;

/// Maximum pause between two reports, in milliseconds. Five reports a second tolerate a late timer.
const REPORT_INTERVAL_MS: f64 = 200.0;
/// Minimum pause between two reports, in milliseconds; closer ones are dropped.
const MIN_REPORT_INTERVAL_MS: f64 = 80.0;
/// Duration of a wait that the progress names, in milliseconds.
const LONG_WAIT_MS: f64 = 3000.0;
/// Bytes that make a wait for a server end.
pub(crate) const MIN_PROMPT_BYTES: u64 = 1024;
/// Window over which the rate is averaged, in milliseconds.
const RATE_WINDOW_MS: f64 = 4000.0;

/// Phases of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Finding the model and reading config.json.
    Config,
    /// Tokenizer and chat template.
    Tokenizer,
    /// Tensors, from their headers to GPU buffers.
    Weights,
    /// All bytes have arrived; kernels are still compiling.
    Compile,
    /// The model is ready.
    Ready,
}

impl Phase {
    /// The phase's stable name in JavaScript.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Config => "config",
            Phase::Tokenizer => "tokenizer",
            Phase::Weights => "weights",
            Phase::Compile => "compile",
            Phase::Ready => "ready",
        }
    }
}

/// One progress report. `loaded` never decreases within a phase.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgressEvent {
    /// The current phase.
    pub phase: Phase,
    /// The file being read; empty between files.
    pub file: String,
    /// Bytes of this phase that have arrived. [`Phase::Compile`] counts kernels; [`Phase::Ready`]
    /// repeats the bytes of the weights.
    pub loaded: u64,
    /// Total in the unit of `loaded`; 0 while unknown.
    pub total: u64,
    /// Fraction of the whole load that is done, 0 to 1. It never decreases and is 1 when the model
    /// is ready.
    pub progress: f64,
    /// Download rate over the last seconds.
    pub bytes_per_second: f64,
    /// Estimated time left at that rate, if rate and total are known.
    pub seconds_left: Option<f64>,
    /// Whether the latest bytes came from the cache.
    pub from_cache: bool,
    /// What the load waits for, if a server delays it: a retry, or a slow answer.
    pub waiting_for: Option<String>,
}

/// State of one part of a file. Models of several graphs read the same parts repeatedly; each part
/// counts once.
#[derive(Debug, Clone, Copy, Default)]
struct PartState {
    /// Bytes that the total includes for it.
    expected: u64,
    /// Whether its bytes have been counted.
    counted: bool,
    /// Whether this load downloaded it.
    fetched: bool,
}

/// Time spent waiting for a server, since it last sent a noticeable number of bytes.
#[derive(Debug, Clone, Copy, Default)]
struct ServerWait {
    /// Start of the current wait.
    since: Option<f64>,
    /// Duration of earlier waits, in milliseconds.
    waited_ms: f64,
    /// Bytes that those brought.
    bytes: u64,
}

/// Receiver of reports.
type ProgressCallback = Box<dyn FnMut(&ProgressEvent)>;

struct ProgressState {
    callback: RefCell<ProgressCallback>,
    phase: Cell<Phase>,
    file: RefCell<String>,
    done: Cell<u64>,
    shown_bytes: Cell<u64>,
    total: Cell<u64>,
    from_cache: Cell<bool>,
    waiting: RefCell<Option<String>>,
    server_wait: Cell<ServerWait>,
    last_report: Cell<f64>,
    /// Kernels compiled and kernels requested; (0, 0) while unknown.
    kernels: Cell<(u64, u64)>,
    /// Bytes of the weights.
    weights: Cell<u64>,
    share: Cell<f64>,
    samples: RefCell<VecDeque<(f64, u64)>>,
    /// Part states by file and part index.
    parts: RefCell<SortedMap<String, SortedMap<u64, PartState>>>,
}

/// Reports the progress of a load. Clones share one callback.
#[derive(Clone)]
pub struct Progress(Rc<ProgressState>);

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Progress({}, {} of {})",
            self.0.phase.get().name(),
            self.0.done.get(),
            self.0.total.get()
        )
    }
}

impl Progress {
    /// Reports to `callback`, which must not call methods of this object.
    pub fn new(callback: impl FnMut(&ProgressEvent) + 'static) -> Progress {
        Progress(Rc::new(ProgressState {
            callback: RefCell::new(Box::new(callback)),
            phase: Cell::new(Phase::Config),
            file: RefCell::default(),
            done: Cell::new(0),
            shown_bytes: Cell::new(0),
            total: Cell::new(0),
            from_cache: Cell::new(false),
            waiting: RefCell::default(),
            server_wait: Cell::default(),
            last_report: Cell::new(0.0),
            kernels: Cell::new((0, 0)),
            weights: Cell::new(0),
            share: Cell::new(0.0),
            samples: RefCell::default(),
            parts: RefCell::default(),
        }))
    }

    /// Creates the progress of two loads, one after the other, which report as one. The first has
    /// `share` of the whole.
    pub fn in_sequence(
        callback: impl FnMut(&ProgressEvent) + 'static,
        share: f64,
    ) -> [Progress; 2] {
        let callback = Rc::new(RefCell::new(callback));
        let before = Rc::new(Cell::new(0));
        let (both, first) = (callback.clone(), before.clone());
        let first = Progress::new(move |event| match event.phase {
            // The second load has not begun.
            Phase::Ready => first.set(event.total),
            _ => (both.borrow_mut())(&ProgressEvent {
                progress: share * event.progress,
                ..event.clone()
            }),
        });
        let second = Progress::new(move |event| {
            let counts_bytes = matches!(event.phase, Phase::Weights | Phase::Ready);
            let before = before.get();
            (callback.borrow_mut())(&ProgressEvent {
                // Small files are read before its weights.
                phase: match event.phase {
                    Phase::Config | Phase::Tokenizer => Phase::Weights,
                    phase => phase,
                },
                loaded: before + if counts_bytes { event.loaded } else { 0 },
                total: before + if counts_bytes { event.total } else { 0 },
                progress: share + (1.0 - share) * event.progress,
                ..event.clone()
            });
        });
        [first, second]
    }

    /// Creates a progress without a callback.
    pub fn silent() -> Progress {
        Progress::new(|_| ())
    }

    /// Starts a phase; bytes count from zero again.
    pub fn phase(&self, phase: Phase) {
        self.0.phase.set(phase);
        self.0.file.borrow_mut().clear();
        self.0.done.set(0);
        self.0.shown_bytes.set(0);
        self.0.total.set(0);
        self.0.from_cache.set(false);
        self.0.samples.borrow_mut().clear();
        for state in self
            .0
            .parts
            .borrow_mut()
            .values_mut()
            .flat_map(SortedMap::values_mut)
        {
            (state.expected, state.counted) = (0, false);
        }
        if phase == Phase::Ready {
            let all = self.0.weights.get();
            self.0.done.set(all);
            self.0.shown_bytes.set(all);
            self.0.total.set(all);
        }
        self.report();
    }

    /// Reports while `work` compiles `more` kernels; `made` returns how many are compiled.
    pub async fn report_compiling<T>(
        &self,
        more: u64,
        made: impl Fn() -> u64,
        work: impl Future<Output = T>,
    ) -> T {
        let (before, total) = self.0.kernels.get();
        self.0.kernels.set((before, total + more));
        if self.waits_for_kernels() {
            self.report();
        }
        let mut work = pin!(work);
        loop {
            match select(work, clock::sleep(REPORT_INTERVAL_MS)).await {
                Either::Left((value, _)) => {
                    self.count_kernels(before + more);
                    return value;
                }
                Either::Right(((), rest)) => {
                    work = rest;
                    self.count_kernels(before + made().min(more));
                }
            }
        }
    }

    fn count_kernels(&self, made: u64) {
        let (before, total) = self.0.kernels.get();
        self.0
            .kernels
            .set((made.clamp(before, total.max(before)), total));
        if self.0.phase.get() == Phase::Compile {
            self.report();
        }
    }

    /// Whether all weight bytes have arrived and only kernels are pending.
    fn waits_for_kernels(&self) -> bool {
        let (made, kernels) = self.0.kernels.get();
        let all = self.0.total.get() > 0 && self.0.done.get() >= self.0.total.get();
        self.0.phase.get() == Phase::Weights && all && made < kernels
    }

    /// Fraction of the load that is done. Weights and kernels load in parallel, so the slower one
    /// decides.
    fn overall_progress(&self, loaded: u64, total: u64) -> f64 {
        let part = |(done, all): (u64, u64)| {
            if all == 0 {
                1.0
            } else {
                done.min(all) as f64 / all as f64
            }
        };
        let some = if total == 0 {
            0.0
        } else {
            part((loaded, total))
        };
        let share = match self.0.phase.get() {
            Phase::Config => 0.01 * some,
            Phase::Tokenizer => 0.01 + 0.02 * some,
            Phase::Weights => 0.03 + 0.96 * some.min(part(self.0.kernels.get())),
            Phase::Compile => 0.03 + 0.96 * part(self.0.kernels.get()),
            Phase::Ready => 1.0,
        };
        self.0.share.set(self.0.share.get().max(share));
        self.0.share.get()
    }

    /// Names the file being read.
    pub fn file(&self, name: &str) {
        if *self.0.file.borrow() != name {
            name.clone_into(&mut self.0.file.borrow_mut());
            self.report();
        }
    }

    /// Names what the load waits for, or ends the wait.
    pub fn wait_for(&self, what: Option<String>) {
        if *self.0.waiting.borrow() != what {
            *self.0.waiting.borrow_mut() = what;
            self.report();
        }
    }

    /// Starts waiting for a server.
    pub fn begin_wait(&self) {
        self.0.server_wait.set(ServerWait {
            since: Some(clock::now_ms()),
            ..self.0.server_wait.get()
        });
    }

    /// Ends a wait that brought `bytes`.
    pub fn end_wait(&self, bytes: u64) {
        let ServerWait {
            since,
            waited_ms,
            bytes: before,
        } = self.0.server_wait.get();
        let wait = ServerWait {
            since: None,
            waited_ms: waited_ms + since.map_or(0.0, |since| clock::now_ms() - since),
            bytes: before + bytes,
        };
        self.0.server_wait.set(if wait.bytes >= MIN_PROMPT_BYTES {
            ServerWait::default()
        } else {
            wait
        });
    }

    /// What the load waits for: a retry, or a server that sends nothing or very little.
    fn waiting(&self) -> Option<String> {
        let ServerWait {
            since, waited_ms, ..
        } = self.0.server_wait.get();
        let named = self.0.waiting.borrow().clone();
        let waits = since.is_some_and(|since| waited_ms + clock::now_ms() - since >= LONG_WAIT_MS);
        named.or_else(|| waits.then(|| "the server sends no data, or very slowly".to_string()))
    }

    /// Adds bytes to the total of this phase.
    pub fn expect(&self, bytes: u64) {
        self.0.total.set(self.0.total.get() + bytes);
        self.report();
    }

    /// Adds a part to the total of this phase, unless it is included already.
    pub fn expect_part(&self, file: &str, part: u64, bytes: u64) {
        let before = self.state(file, part, |state| {
            std::mem::replace(&mut state.expected, bytes)
        });
        self.0
            .total
            .set(self.0.total.get().saturating_sub(before) + bytes);
    }

    /// Whether a part's bytes are not yet counted in this phase.
    pub fn is_uncounted(&self, file: &str, part: u64) -> bool {
        self.state(file, part, |state| !state.counted)
    }

    /// Whether this load downloaded a part. If so, a later cache hit of the part does not count as
    /// cached.
    pub fn was_fetched(&self, file: &str, part: u64) -> bool {
        self.state(file, part, |state| state.fetched)
    }

    /// Marks a part as fully read.
    pub fn mark_read(&self, file: &str, part: u64, from_cache: bool) {
        self.state(file, part, |state| {
            state.counted = true;
            state.fetched |= !from_cache;
        });
    }

    /// Resets the parts of a file that must be read again.
    pub fn reset_parts(&self, file: &str) {
        if let Some(parts) = self.0.parts.borrow_mut().get_mut(file) {
            parts.values_mut().for_each(|state| state.counted = false);
        }
    }

    fn state<T>(&self, file: &str, part: u64, with: impl FnOnce(&mut PartState) -> T) -> T {
        let mut files = self.0.parts.borrow_mut();
        let parts = files.get_or_insert_with(file.to_string(), SortedMap::new);
        with(parts.get_or_insert_with(part, PartState::default))
    }

    /// Counts bytes that have arrived.
    pub fn add_bytes(&self, bytes: u64, from_cache: bool) {
        self.0.done.set(self.0.done.get() + bytes);
        self.0
            .shown_bytes
            .set(self.0.shown_bytes.get().max(self.0.done.get()));
        self.0.from_cache.set(from_cache);
        // Report the last bytes in any case: no later report may follow to show completion.
        let all = self.0.total.get() > 0 && self.0.done.get() >= self.0.total.get();
        if all || clock::now_ms() - self.0.last_report.get() >= MIN_REPORT_INTERVAL_MS {
            self.report();
        }
    }

    /// Subtracts bytes that must be read again. The reported number does not change until they have
    /// arrived again.
    pub fn uncount_bytes(&self, bytes: u64) {
        self.0.done.set(self.0.done.get().saturating_sub(bytes));
    }

    /// Bytes of this phase that have arrived.
    pub fn loaded(&self) -> u64 {
        self.0.done.get()
    }

    /// Bytes per second over the last [`RATE_WINDOW_MS`].
    pub fn rate(&self) -> f64 {
        let now = clock::now_ms();
        let mut samples = self.0.samples.borrow_mut();
        let done = self.0.done.get();
        samples.push_back((now, done));
        while samples.len() > 2
            && samples
                .front()
                .is_some_and(|(t, _)| now - t > RATE_WINDOW_MS)
        {
            samples.pop_front();
        }
        match samples.front() {
            Some((then, before)) if now - then >= 1.0 => {
                done.saturating_sub(*before) as f64 * 1000.0 / (now - then)
            }
            _ => 0.0,
        }
    }

    /// Reports immediately.
    pub fn report(&self) {
        if self.0.phase.get() == Phase::Weights {
            self.0.weights.set(self.0.total.get());
        }
        self.emit(self.0.phase.get());
        if self.waits_for_kernels() {
            self.0.phase.set(Phase::Compile);
            self.emit(Phase::Compile);
        }
    }

    fn emit(&self, phase: Phase) {
        let bytes_per_second = if phase == Phase::Compile {
            0.0
        } else {
            self.rate()
        };
        let (loaded, total) = match phase {
            Phase::Compile => self.0.kernels.get(),
            _ => (self.0.shown_bytes.get(), self.0.total.get()),
        };
        let left = total.saturating_sub(self.0.done.get());
        let known = phase != Phase::Compile && total > 0 && (left == 0 || bytes_per_second > 0.0);
        let event = ProgressEvent {
            phase,
            file: self.0.file.borrow().clone(),
            loaded: if total > 0 { loaded.min(total) } else { loaded },
            total,
            progress: self.overall_progress(loaded, total),
            bytes_per_second,
            seconds_left: known.then(|| {
                if left == 0 {
                    0.0
                } else {
                    left as f64 / bytes_per_second
                }
            }),
            from_cache: self.0.from_cache.get(),
            waiting_for: self.waiting(),
        };
        self.0.last_report.set(clock::now_ms());
        // A reentrant callback finds the cell borrowed; its report is dropped instead of panicking.
        if let Ok(mut callback) = self.0.callback.try_borrow_mut() {
            callback(&event);
        }
    }

    /// Runs `future` and keeps reporting until it completes.
    pub async fn report_while<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        loop {
            match select(future, clock::sleep(REPORT_INTERVAL_MS)).await {
                Either::Left((value, _)) => return value,
                Either::Right(((), rest)) => {
                    future = rest;
                    if clock::now_ms() - self.0.last_report.get() >= REPORT_INTERVAL_MS * 0.9 {
                        self.report();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_several_graphs_read_counts_once() {
        let events: Rc<RefCell<Vec<ProgressEvent>>> = Rc::default();
        let seen = events.clone();
        let progress = Progress::new(move |event| seen.borrow_mut().push(event.clone()));
        progress.phase(Phase::Weights);
        let parts = [(0, 40), (1, 40), (2, 20)];
        let read = |part: u64, bytes: u64, cached: bool| {
            if progress.is_uncounted("a", part) {
                progress.add_bytes(bytes, cached && !progress.was_fetched("a", part));
                progress.mark_read("a", part, cached);
            }
        };
        parts
            .iter()
            .for_each(|(part, bytes)| progress.expect_part("a", *part, *bytes));
        // The first graph downloads two parts. The second reads all three, and finds those two in
        // the cache.
        for (part, cached) in [(0, false), (1, false), (0, true), (1, true), (2, false)] {
            progress.expect_part("a", part, parts[part as usize].1);
            read(part, parts[part as usize].1, cached);
        }
        let last_report = || {
            events
                .borrow()
                .last()
                .map(|e| (e.loaded, e.total, e.from_cache))
        };
        assert_eq!(last_report(), Some((100, 100, false)));
        assert!(events.borrow().iter().skip(1).all(|e| e.total == 100));
        // The next phase counts from zero and still knows which parts were downloaded.
        progress.phase(Phase::Weights);
        progress.expect_part("a", 0, 40);
        read(0, 40, true);
        assert_eq!(last_report(), Some((40, 40, false)));
        progress.uncount_bytes(40);
        progress.reset_parts("a");
        read(0, 40, true);
        assert_eq!(
            (last_report(), progress.loaded()),
            (Some((40, 40, false)), 40)
        );
    }

    #[test]
    fn one_share_of_the_whole_load_goes_once_from_nothing_to_all() {
        let events: Rc<RefCell<Vec<ProgressEvent>>> = Rc::default();
        let seen = events.clone();
        let progress = Progress::new(move |event| seen.borrow_mut().push(event.clone()));
        for phase in [Phase::Config, Phase::Config, Phase::Tokenizer] {
            progress.phase(phase);
            progress.expect(10);
            progress.add_bytes(10, false);
        }
        progress.phase(Phase::Weights);
        progress.expect(100);
        let made = Cell::new(0);
        let work = async {
            for _ in 0..4 {
                progress.add_bytes(25, true);
                clock::sleep(1.0).await;
            }
            for i in 1..=4 {
                made.set(i);
                clock::sleep(REPORT_INTERVAL_MS * 1.5).await;
            }
        };
        pollster::block_on(progress.report_compiling(4, || made.get(), work));
        progress.phase(Phase::Ready);
        let events = events.borrow();
        assert!(
            events
                .windows(2)
                .all(|two| two[0].progress <= two[1].progress)
        );
        let of = |phase| {
            events
                .iter()
                .filter(move |e| e.phase == phase)
                .collect::<Vec<_>>()
        };
        assert!(
            of(Phase::Weights).iter().all(|e| e.progress < 0.04),
            "no kernel was compiled"
        );
        let compile: Vec<(u64, u64)> = of(Phase::Compile)
            .iter()
            .map(|e| (e.loaded, e.total))
            .collect();
        assert!(
            compile.first() == Some(&(0, 4)) && compile.last() == Some(&(4, 4)),
            "{compile:?}"
        );
        let ready = &of(Phase::Ready)[0];
        assert_eq!((ready.loaded, ready.total, ready.progress), (100, 100, 1.0));
    }

    #[test]
    fn kernels_that_start_after_the_last_byte_are_reported() {
        let events: Rc<RefCell<Vec<ProgressEvent>>> = Rc::default();
        let seen = events.clone();
        let progress = Progress::new(move |event| seen.borrow_mut().push(event.clone()));
        progress.phase(Phase::Weights);
        progress.expect(100);
        progress.add_bytes(100, true);
        pollster::block_on(progress.report_compiling(3, || 0, async {}));
        progress.phase(Phase::Ready);
        let events = events.borrow();
        let compile: Vec<(u64, u64)> = events
            .iter()
            .filter(|e| e.phase == Phase::Compile)
            .map(|e| (e.loaded, e.total))
            .collect();
        assert_eq!(compile, [(0, 3), (3, 3)]);
    }
}
