//! When to try again and how long to wait. Sends nothing itself.

use crate::util::clock;

/// How stubbornly a download is pursued.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    /// Failures in a row, without a byte between them, before giving up.
    pub attempts: u32,
    /// Failures of one range in all before giving up, even with bytes between them.
    pub total_attempts: u32,
    /// Failures in a row before giving up a server that never answered anything.
    pub first_attempts: u32,
    /// The first pause in milliseconds; it doubles with each failure.
    pub base_ms: f64,
    /// The longest pause that is chosen here.
    pub max_ms: f64,
    /// The longest `Retry-After` that is obeyed; a server that asks for more is taken as refusing.
    pub max_retry_after_ms: f64,
    /// A connection that is silent for so long counts as broken.
    pub stall_ms: f64,
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy {
            attempts: 6,
            total_attempts: 60,
            first_attempts: 3,
            base_ms: 500.0,
            max_ms: 20_000.0,
            max_retry_after_ms: 120_000.0,
            stall_ms: 30_000.0,
        }
    }
}

impl RetryPolicy {
    /// The pause after the `failures`-th failure in a row: doubling, with a quarter of jitter so that the streams of many
    /// pages do not come back together.
    pub(crate) fn pause(&self, failures: u32) -> f64 {
        let doubled = self.base_ms * f64::from(1u32 << failures.saturating_sub(1).min(16));
        let jitter = (clock::now_ms() * 7.0).rem_euclid(1000.0) / 1000.0;
        doubled.min(self.max_ms) * (0.75 + 0.5 * jitter)
    }

    /// What a `Retry-After` header asks for, in milliseconds: seconds, or a date.
    pub(crate) fn retry_after(header: &str) -> Option<f64> {
        if let Ok(seconds) = header.trim().parse::<u32>() {
            return Some(f64::from(seconds) * 1000.0);
        }
        Some((date(header.trim())? - clock::now_ms()).max(0.0))
    }
}

/// A date in milliseconds since 1970.
#[cfg(target_arch = "wasm32")]
fn date(text: &str) -> Option<f64> {
    Some(js_sys::Date::parse(text)).filter(|ms| ms.is_finite())
}

/// A date in milliseconds since 1970.
#[cfg(not(target_arch = "wasm32"))]
fn date(text: &str) -> Option<f64> {
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(std::time::UNIX_EPOCH).ok()?.as_secs_f64() * 1000.0)
}

/// Whether a status may pass by itself.
pub(crate) fn is_transient(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504 | 520..=524)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit() {
        let policy = RetryPolicy::default();
        assert!((375.0..=625.0).contains(&policy.pause(1)));
        assert!((1500.0..=2500.0).contains(&policy.pause(3)));
        assert!(policy.pause(1000) <= policy.max_ms * 1.25);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        assert_eq!(RetryPolicy::retry_after("7"), Some(7000.0));
        assert_eq!(RetryPolicy::retry_after("Sun, 06 Nov 1994 08:49:37 GMT"), Some(0.0));
        assert_eq!(RetryPolicy::retry_after("soon"), None);
    }

    // A page's dates are the browser's, which has nothing to write one in this form with.
    #[cfg(not(target_arch = "wasm32"))]
    #[test]
    fn retry_after_is_the_time_until_a_date() {
        let soon = std::time::SystemTime::now() + std::time::Duration::from_secs(60);
        let wait = RetryPolicy::retry_after(&httpdate::fmt_http_date(soon)).expect("a date");
        assert!((50_000.0..=61_000.0).contains(&wait), "{wait}");
    }
}
