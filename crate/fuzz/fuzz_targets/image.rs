//! See `image` in targets.rs.
#![no_main]

#[path = "../targets.rs"]
#[allow(dead_code)] // each binary uses one of them
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::image(bytes));
