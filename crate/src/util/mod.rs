//! Shared helpers: time, events, short lists, sorted maps, hashes, base64, Python's JSON.

pub(crate) mod base64;
pub(crate) mod checksum;
pub(crate) mod clock;
#[cfg(target_arch = "wasm32")]
pub(crate) mod host;
pub(crate) mod json;
pub(crate) mod latch;
pub(crate) mod limits;
pub mod map;
pub(crate) mod sha256;
pub(crate) mod sort;
pub(crate) mod tokenizer_parts;

/// FNV-1a hash. It distinguishes versions of a thing, and does not resist attackers.
pub(crate) fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    })
}
