//! Runs a test in a process of its own whose memory is limited, so that a file that makes the
//! engine allocate without end fails the test instead of the machine.

use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Memory of the limited process in KiB: 512 MB.
const MEMORY_KIB: u32 = 512 << 10;

/// Stack of a page in bytes.
pub const PAGE_STACK: usize = 1 << 20;

const VARIABLE: &str = "JERBOA_TEST_CAPPED";

/// Runs the test of this name, such as `limits::templates`, again with limited memory; false in
/// that process itself, where the caller goes on.
///
/// # Panics
/// If the test fails there.
pub fn runs_elsewhere(test: &str) -> bool {
    if std::env::var_os(VARIABLE).is_some() || !cfg!(target_os = "linux") {
        return false;
    }
    let program = std::env::current_exe().expect("this program");
    let script = format!(
        "ulimit -v {MEMORY_KIB} && exec \"$0\" --exact {test} --test-threads=1 --nocapture"
    );
    let status = Command::new("sh")
        .args(["-c", &script])
        .arg(program)
        .env(VARIABLE, "1")
        // Each further arena reserves 64 MB of addresses.
        .env("MALLOC_ARENA_MAX", "1")
        .status()
        .expect("a shell");
    assert!(status.success(), "{test} with {MEMORY_KIB} KiB: {status}");
    true
}

/// Runs `work` on a thread with the stack of a page.
///
/// # Panics
/// With the panic of `work`.
pub fn on_page_stack<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::Builder::new().stack_size(PAGE_STACK);
    let thread = thread.spawn(work).expect("a thread");
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// How long this thread has run on a processor, which other programs do not change; where the
/// system does not say so, how long the program has run.
pub fn thread_time() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let start = *START;
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = statistics.and_then(|text| text.split(' ').next()?.parse().ok());
    nanoseconds.map_or_else(|| start.elapsed(), Duration::from_nanos)
}
