//! Current time, sleep and timeout, with one implementation for browsers and one for native builds.

use std::future::Future;
use std::pin::pin;

use futures_util::future::{Either, select};

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> f64 {
    #[cfg(target_arch = "wasm32")]
    return imp::now_ms();
    #[cfg(not(target_arch = "wasm32"))]
    std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .map_or(0.0, |t| t.as_secs_f64() * 1000.0)
}

/// Waits for `ms` milliseconds. Dropping the future frees the timer.
pub(crate) fn sleep(ms: f64) -> imp::Sleep {
    imp::Sleep::new(ms.max(0.0))
}

/// Returns the future's output, or `None` if it takes longer than `ms` milliseconds.
pub(crate) async fn timeout<T>(ms: f64, future: impl Future<Output = T>) -> Option<T> {
    match select(pin!(future), sleep(ms)).await {
        Either::Left((value, _)) => Some(value),
        Either::Right(_) => None,
    }
}

#[cfg(target_arch = "wasm32")]
mod imp {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use js_sys::{Function, Promise};
    use wasm_bindgen::prelude::*;
    use wasm_bindgen_futures::JsFuture;

    #[wasm_bindgen]
    extern "C" {
        #[wasm_bindgen(js_name = setTimeout)]
        fn set_timeout(callback: &Function, ms: f64) -> JsValue;
        #[wasm_bindgen(js_name = clearTimeout)]
        fn clear_timeout(id: &JsValue);
        #[wasm_bindgen(thread_local_v2, js_namespace = performance, js_name = timeOrigin)]
        static TIME_ORIGIN: f64;
        #[wasm_bindgen(js_namespace = performance)]
        fn now() -> f64;
    }

    /// Reads the browser's finest clock; `Date.now` counts whole milliseconds.
    pub(super) fn now_ms() -> f64 {
        TIME_ORIGIN.with(|origin| *origin) + now()
    }

    pub(crate) struct Sleep {
        id: JsValue,
        resolve: Option<Function>,
        future: JsFuture,
    }

    impl Sleep {
        pub(super) fn new(ms: f64) -> Sleep {
            let mut id = JsValue::UNDEFINED;
            let mut own = None;

            let promise = Promise::new(&mut |resolve, _| {
                id = set_timeout(&resolve, ms);
                own = Some(resolve);
            });
            Sleep {
                id,
                resolve: own,
                future: JsFuture::from(promise),
            }
        }
    }

    impl Future for Sleep {
        type Output = ();
        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            Pin::new(&mut self.future).poll(cx).map(|_| ())
        }
    }

    impl Drop for Sleep {
        fn drop(&mut self) {
            clear_timeout(&self.id);
            // Resolves the promise: a future that waits for a pending promise is never freed.
            let _ = self
                .resolve
                .as_ref()
                .map(|resolve| resolve.call0(&JsValue::UNDEFINED));
        }
    }
}

#[cfg(not(target_arch = "wasm32"))]
mod imp {
    use std::collections::BTreeMap;
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
    use std::task::{Context, Poll, Waker};
    use std::time::{Duration, Instant};

    /// The next timer id, and the wakers by deadline and id.
    type Waiting = (u64, BTreeMap<(Instant, u64), Waker>);

    /// One thread for all timers; it sleeps until the next deadline.
    #[derive(Default)]
    struct Timers {
        waiting: Mutex<Waiting>,
        changed: Condvar,
    }

    impl Timers {
        fn get() -> &'static Timers {
            static TIMERS: OnceLock<Timers> = OnceLock::new();
            static THREAD: OnceLock<()> = OnceLock::new();
            let timers = TIMERS.get_or_init(Timers::default);
            THREAD.get_or_init(|| {
                std::thread::spawn(|| TIMERS.get_or_init(Timers::default).run());
            });
            timers
        }

        fn lock(&self) -> MutexGuard<'_, Waiting> {
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn run(&self) {
            let mut waiting = self.lock();
            loop {
                let now = Instant::now();
                while waiting
                    .1
                    .first_key_value()
                    .is_some_and(|((due, _), _)| *due <= now)
                {
                    if let Some((_, waker)) = waiting.1.pop_first() {
                        waker.wake();
                    }
                }
                let pause = waiting
                    .1
                    .first_key_value()
                    .map_or(Duration::from_secs(3600), |((due, _), _)| *due - now);
                waiting = self
                    .changed
                    .wait_timeout(waiting, pause)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
        }
    }

    pub(crate) struct Sleep {
        due: Instant,
        id: Option<u64>,
    }

    impl Sleep {
        pub(super) fn new(ms: f64) -> Sleep {
            Sleep {
                due: Instant::now() + Duration::from_secs_f64(ms / 1000.0),
                id: None,
            }
        }
    }

    impl Future for Sleep {
        type Output = ();
        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            if Instant::now() >= self.due {
                return Poll::Ready(());
            }
            let timers = Timers::get();
            let mut waiting = timers.lock();
            let id = self.id.unwrap_or_else(|| {
                waiting.0 += 1;
                waiting.0
            });
            self.id = Some(id);
            waiting.1.insert((self.due, id), cx.waker().clone());
            timers.changed.notify_one();
            Poll::Pending
        }
    }

    impl Drop for Sleep {
        fn drop(&mut self) {
            if let Some(id) = self.id {
                Timers::get().lock().1.remove(&(self.due, id));
            }
        }
    }
}
