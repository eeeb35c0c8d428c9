//! Retry policy: when to retry and how long to pause. Sends no requests.

use crate::util::clock;

/// Limits and pauses of retries.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    /// Maximum failures in a row, without a byte received between them.
    pub attempts: u32,
    /// Maximum failures of one range, even with bytes received between them.
    pub total_attempts: u32,
    /// Maximum failures in a row of a server that never answered.
    pub first_attempts: u32,
    /// The first pause in milliseconds; each failure doubles it.
    pub base_ms: f64,
    /// The longest computed pause, in milliseconds.
    pub max_ms: f64,
    /// The longest `Retry-After` that is honored, in milliseconds; a longer one counts as a
    /// refusal.
    pub max_retry_after_ms: f64,
    /// Milliseconds without data after which a connection counts as broken.
    pub stall_ms: f64,
    /// Bytes per second below which a connection counts as stalled, measured over `stall_ms`.
    pub min_bytes_per_second: f64,
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
            min_bytes_per_second: 256.0,
        }
    }
}

impl RetryPolicy {
    /// The pause after the `failures`-th failure in a row: it doubles, with 25% jitter, so that
    /// many pages do not retry in sync.
    pub(crate) fn pause(&self, failures: u32) -> f64 {
        let doubled = self.base_ms * f64::from(1u32 << failures.saturating_sub(1).min(16));
        let jitter = (clock::now_ms() * 7.0).rem_euclid(1000.0) / 1000.0;
        doubled.min(self.max_ms) * (0.75 + 0.5 * jitter)
    }

    /// Parses a `Retry-After` header into milliseconds: seconds, or a date.
    pub(crate) fn retry_after(header: &str) -> Option<f64> {
        if let Ok(seconds) = header.trim().parse::<u32>() {
            return Some(f64::from(seconds) * 1000.0);
        }
        Some((parse_date(header.trim())? - clock::now_ms()).max(0.0))
    }
}

/// Parses a date into milliseconds since 1970.
#[cfg(target_arch = "wasm32")]
fn parse_date(text: &str) -> Option<f64> {
    Some(js_sys::Date::parse(text)).filter(|ms| ms.is_finite())
}

/// Parses a date into milliseconds since 1970.
#[cfg(not(target_arch = "wasm32"))]
fn parse_date(text: &str) -> Option<f64> {
    let date = httpdate::parse_http_date(text).ok()?;
    Some(
        date.duration_since(std::time::UNIX_EPOCH)
            .ok()?
            .as_secs_f64()
            * 1000.0,
    )
}

/// Whether a status is likely to be temporary.
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
        assert_eq!(
            RetryPolicy::retry_after("Sun, 06 Nov 1994 08:49:37 GMT"),
            Some(0.0)
        );
        assert_eq!(RetryPolicy::retry_after("soon"), None);
    }

    // In the browser, JavaScript parses dates, and nothing here can format one.
    #[cfg(not(target_arch = "wasm32"))]
    #[test]
    fn retry_after_is_the_time_until_a_date() {
        let soon = std::time::SystemTime::now() + std::time::Duration::from_secs(60);
        let wait = RetryPolicy::retry_after(&httpdate::fmt_http_date(soon)).expect("a date");
        assert!((50_000.0..=61_000.0).contains(&wait), "{wait}");
    }
}
