//! What a load says while it runs: phase, file, bytes, rate, time left; at least four times a second, even when nothing
//! moves. Knows nothing of how the bytes come.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;

use futures_util::future::{Either, select};

use crate::util::clock;
use crate::util::map::SortedMap;

/// A pause between two reports at the most, in milliseconds: five a second leave room for a late timer.
const TICK_MS: f64 = 200.0;
/// Reports closer together than this are dropped.
const THROTTLE_MS: f64 = 80.0;
/// The rate is that of the last this many milliseconds.
const WINDOW_MS: f64 = 4000.0;

/// What a load is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Looking the model up; config.json.
    Config,
    /// Tokenizer and chat template.
    Tokenizer,
    /// Tensors, from their headers to the GPU.
    Weights,
    /// All bytes are there; kernels are still being compiled.
    Compile,
    /// Done.
    Ready,
}

impl Phase {
    /// Its stable name in JavaScript.
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

/// One report. `loaded` never falls within a phase.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgressEvent {
    /// What is being done.
    pub phase: Phase,
    /// The file that is being read; empty between files.
    pub file: String,
    /// Bytes of this phase that have arrived; of [`Phase::Compile`] kernels, of [`Phase::Ready`] the bytes of the weights.
    pub loaded: u64,
    /// The same in all; 0 while unknown.
    pub total: u64,
    /// How much of the whole load is done, from 0 to 1. It never falls, and is 1 when the model is ready.
    pub share: f64,
    /// Rate of the last seconds.
    pub bytes_per_second: f64,
    /// Time left at that rate, where both are known.
    pub seconds_left: Option<f64>,
    /// Whether the latest bytes came from the cache.
    pub from_cache: bool,
}

/// What is known of a part of a file. Models of several graphs read the same parts for one after another: each counts once.
#[derive(Debug, Clone, Copy, Default)]
struct PartState {
    /// Bytes that the total has of it.
    expected: u64,
    /// Whether its bytes have been counted.
    counted: bool,
    /// Whether this load had it from the network.
    fetched: bool,
}

/// Who is told.
type Callback = Box<dyn FnMut(&ProgressEvent)>;

struct Inner {
    callback: RefCell<Callback>,
    phase: Cell<Phase>,
    file: RefCell<String>,
    done: Cell<u64>,
    shown: Cell<u64>,
    total: Cell<u64>,
    from_cache: Cell<bool>,
    last_report: Cell<f64>,
    /// Kernels that are there, and all that are wanted; none while nobody knows.
    kernels: Cell<(u64, u64)>,
    /// Bytes of the weights.
    weights: Cell<u64>,
    share: Cell<f64>,
    samples: RefCell<VecDeque<(f64, u64)>>,
    /// Parts by file and number.
    parts: RefCell<SortedMap<String, SortedMap<u64, PartState>>>,
}

/// The one who reports. Clones report to the same callback.
#[derive(Clone)]
pub struct Progress(Rc<Inner>);

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Progress({}, {} of {})", self.0.phase.get().name(), self.0.done.get(), self.0.total.get())
    }
}

impl Progress {
    /// Reports to `callback`, which must not call back into this object.
    pub fn new(callback: impl FnMut(&ProgressEvent) + 'static) -> Progress {
        Progress(Rc::new(Inner {
            callback: RefCell::new(Box::new(callback)),
            phase: Cell::new(Phase::Config),
            file: RefCell::default(),
            done: Cell::new(0),
            shown: Cell::new(0),
            total: Cell::new(0),
            from_cache: Cell::new(false),
            last_report: Cell::new(0.0),
            kernels: Cell::new((0, 0)),
            weights: Cell::new(0),
            share: Cell::new(0.0),
            samples: RefCell::default(),
            parts: RefCell::default(),
        }))
    }

    /// Reports to nobody.
    pub fn none() -> Progress {
        Progress::new(|_| ())
    }

    /// Begins a phase: bytes count from zero again.
    pub fn phase(&self, phase: Phase) {
        self.0.phase.set(phase);
        self.0.file.borrow_mut().clear();
        self.0.done.set(0);
        self.0.shown.set(0);
        self.0.total.set(0);
        self.0.from_cache.set(false);
        self.0.samples.borrow_mut().clear();
        for state in self.0.parts.borrow_mut().values_mut().flat_map(SortedMap::values_mut) {
            (state.expected, state.counted) = (0, false);
        }
        if phase == Phase::Ready {
            let all = self.0.weights.get();
            self.0.done.set(all);
            self.0.shown.set(all);
            self.0.total.set(all);
        }
        self.report();
    }

    /// Reports all the while that `work` compiles `more` kernels, of which `made` counts those that are there.
    pub async fn compiling<T>(&self, more: u64, made: impl Fn() -> u64, work: impl Future<Output = T>) -> T {
        let (before, total) = self.0.kernels.get();
        self.0.kernels.set((before, total + more));
        let mut work = pin!(work);
        loop {
            match select(work, clock::sleep(TICK_MS)).await {
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
        self.0.kernels.set((made.clamp(before, total.max(before)), total));
        if self.0.phase.get() == Phase::Compile {
            self.report();
        }
    }

    /// Whether all bytes of the weights are there: what is left is waiting for kernels.
    fn waits_for_kernels(&self) -> bool {
        let (made, kernels) = self.0.kernels.get();
        let all = self.0.total.get() > 0 && self.0.done.get() >= self.0.total.get();
        self.0.phase.get() == Phase::Weights && all && made < kernels
    }

    /// How much of the load is done. Weights and kernels come at the same time: what is behind decides.
    fn whole(&self, loaded: u64, total: u64) -> f64 {
        let part = |(done, all): (u64, u64)| if all == 0 { 1.0 } else { done.min(all) as f64 / all as f64 };
        let some = if total == 0 { 0.0 } else { part((loaded, total)) };
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

    /// Names the file that is being read.
    pub fn file(&self, name: &str) {
        if *self.0.file.borrow() != name {
            name.clone_into(&mut self.0.file.borrow_mut());
            self.report();
        }
    }

    /// Adds to the bytes that this phase will read.
    pub fn expect(&self, bytes: u64) {
        self.0.total.set(self.0.total.get() + bytes);
        self.report();
    }

    /// Adds a part of a file to what this phase will read, unless it is among that already.
    pub fn expect_part(&self, file: &str, part: u64, bytes: u64) {
        let before = self.state(file, part, |state| std::mem::replace(&mut state.expected, bytes));
        self.0.total.set(self.0.total.get().saturating_sub(before) + bytes);
    }

    /// Whether the bytes of a part are still to be counted in this phase.
    pub fn counts(&self, file: &str, part: u64) -> bool {
        self.state(file, part, |state| !state.counted)
    }

    /// Whether this load had a part from the network: then the cache is where it came to, not where it came from.
    pub fn was_fetched(&self, file: &str, part: u64) -> bool {
        self.state(file, part, |state| state.fetched)
    }

    /// A part has come as a whole.
    pub fn came(&self, file: &str, part: u64, from_cache: bool) {
        self.state(file, part, |state| {
            state.counted = true;
            state.fetched |= !from_cache;
        });
    }

    /// The parts of a file must be read again.
    pub fn forget(&self, file: &str) {
        if let Some(parts) = self.0.parts.borrow_mut().get_mut(file) {
            parts.values_mut().for_each(|state| state.counted = false);
        }
    }

    fn state<T>(&self, file: &str, part: u64, with: impl FnOnce(&mut PartState) -> T) -> T {
        let mut files = self.0.parts.borrow_mut();
        let parts = files.get_or_insert_with(file.to_string(), SortedMap::new);
        with(parts.get_or_insert_with(part, PartState::default))
    }

    /// Bytes have arrived.
    pub fn add(&self, bytes: u64, from_cache: bool) {
        self.0.done.set(self.0.done.get() + bytes);
        self.0.shown.set(self.0.shown.get().max(self.0.done.get()));
        self.0.from_cache.set(from_cache);
        // The last bytes are always reported: nothing may follow them that would say that all is there.
        let all = self.0.total.get() > 0 && self.0.done.get() >= self.0.total.get();
        if all || clock::now_ms() - self.0.last_report.get() >= THROTTLE_MS {
            self.report();
        }
    }

    /// Bytes that had arrived must be read again; the number shown stands still until they have.
    pub fn take_back(&self, bytes: u64) {
        self.0.done.set(self.0.done.get().saturating_sub(bytes));
    }

    /// Bytes of this phase that have arrived.
    pub fn loaded(&self) -> u64 {
        self.0.done.get()
    }

    /// Bytes per second over the last seconds.
    pub fn rate(&self) -> f64 {
        let now = clock::now_ms();
        let mut samples = self.0.samples.borrow_mut();
        let done = self.0.done.get();
        samples.push_back((now, done));
        while samples.len() > 2 && samples.front().is_some_and(|(t, _)| now - t > WINDOW_MS) {
            samples.pop_front();
        }
        match samples.front() {
            Some((then, before)) if now - then >= 1.0 => done.saturating_sub(*before) as f64 * 1000.0 / (now - then),
            _ => 0.0,
        }
    }

    /// Reports now.
    pub fn report(&self) {
        if self.0.phase.get() == Phase::Weights {
            self.0.weights.set(self.0.total.get());
        }
        self.tell(self.0.phase.get());
        if self.waits_for_kernels() {
            self.0.phase.set(Phase::Compile);
            self.tell(Phase::Compile);
        }
    }

    fn tell(&self, phase: Phase) {
        let bytes_per_second = if phase == Phase::Compile { 0.0 } else { self.rate() };
        let (loaded, total) = match phase {
            Phase::Compile => self.0.kernels.get(),
            _ => (self.0.shown.get(), self.0.total.get()),
        };
        let left = total.saturating_sub(self.0.done.get());
        let known = phase != Phase::Compile && total > 0 && (left == 0 || bytes_per_second > 0.0);
        let event = ProgressEvent {
            phase,
            file: self.0.file.borrow().clone(),
            loaded: if total > 0 { loaded.min(total) } else { loaded },
            total,
            share: self.whole(loaded, total),
            bytes_per_second,
            seconds_left: known.then(|| if left == 0 { 0.0 } else { left as f64 / bytes_per_second }),
            from_cache: self.0.from_cache.get(),
        };
        self.0.last_report.set(clock::now_ms());
        // A callback that calls back would find the cell taken: its report is dropped, not a panic.
        if let Ok(mut callback) = self.0.callback.try_borrow_mut() {
            callback(&event);
        }
    }

    /// Runs `future` and reports all the while, so that no wait is silent.
    pub async fn during<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        loop {
            match select(future, clock::sleep(TICK_MS)).await {
                Either::Left((value, _)) => return value,
                Either::Right(((), rest)) => {
                    future = rest;
                    if clock::now_ms() - self.0.last_report.get() >= TICK_MS * 0.9 {
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
            if progress.counts("a", part) {
                progress.add(bytes, cached && !progress.was_fetched("a", part));
                progress.came("a", part, cached);
            }
        };
        parts.iter().for_each(|(part, bytes)| progress.expect_part("a", *part, *bytes));
        // The first graph reads two parts of the network, the second all, of which the cache has those two by now.
        for (part, cached) in [(0, false), (1, false), (0, true), (1, true), (2, false)] {
            progress.expect_part("a", part, parts[part as usize].1);
            read(part, parts[part as usize].1, cached);
        }
        let told = || events.borrow().last().map(|e| (e.loaded, e.total, e.from_cache));
        assert_eq!(told(), Some((100, 100, false)));
        assert!(events.borrow().iter().skip(1).all(|e| e.total == 100));
        // The next phase counts anew, and still knows what the network brought.
        progress.phase(Phase::Weights);
        progress.expect_part("a", 0, 40);
        read(0, 40, true);
        assert_eq!(told(), Some((40, 40, false)));
        progress.take_back(40);
        progress.forget("a");
        read(0, 40, true);
        assert_eq!((told(), progress.loaded()), (Some((40, 40, false)), 40));
    }

    #[test]
    fn one_share_of_the_whole_load_goes_once_from_nothing_to_all() {
        let events: Rc<RefCell<Vec<ProgressEvent>>> = Rc::default();
        let seen = events.clone();
        let progress = Progress::new(move |event| seen.borrow_mut().push(event.clone()));
        for phase in [Phase::Config, Phase::Config, Phase::Tokenizer] {
            progress.phase(phase);
            progress.expect(10);
            progress.add(10, false);
        }
        progress.phase(Phase::Weights);
        progress.expect(100);
        let made = Cell::new(0);
        let work = async {
            for _ in 0..4 {
                progress.add(25, true);
                clock::sleep(1.0).await;
            }
            for i in 1..=4 {
                made.set(i);
                clock::sleep(TICK_MS * 1.5).await;
            }
        };
        pollster::block_on(progress.compiling(4, || made.get(), work));
        progress.phase(Phase::Ready);
        let events = events.borrow();
        assert!(events.windows(2).all(|two| two[0].share <= two[1].share));
        let of = |phase| events.iter().filter(move |e| e.phase == phase).collect::<Vec<_>>();
        assert!(of(Phase::Weights).iter().all(|e| e.share < 0.04), "no kernel was there");
        let compile: Vec<(u64, u64)> = of(Phase::Compile).iter().map(|e| (e.loaded, e.total)).collect();
        assert!(compile.first() == Some(&(0, 4)) && compile.last() == Some(&(4, 4)), "{compile:?}");
        let ready = &of(Phase::Ready)[0];
        assert_eq!((ready.loaded, ready.total, ready.share), (100, 100, 1.0));
    }
}
