//! Replays the fuzzing seeds and earlier findings (crate/fuzz/seeds), whole and damaged in a
//! deterministic way.

use std::time::Duration;

use jerboa_tests::capped;

#[path = "../../crate/fuzz/targets.rs"]
mod targets;

/// Longest time that one input of a target may take. Templates and tokenizers are programs; what
/// they may spend is limited to two seconds. A template is rendered for four conversations.
fn deadline(name: &str) -> Duration {
    Duration::from_secs(match name {
        "template" => 8,
        "tokenizer" => 2,
        _ => 20,
    })
}

/// Runs a target on each of its seeds, then with single bytes changed and with the rest removed, in
/// a process with limited memory.
fn replay(name: &str, target: fn(&[u8])) {
    if capped::runs_elsewhere(&format!("seeds::{name}")) {
        return;
    }
    let folder = format!("{}/../crate/fuzz/seeds/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut seeds = 0;
    for entry in std::fs::read_dir(&folder).expect(&folder) {
        let seed = std::fs::read(entry.expect("an entry").path()).expect("a seed");
        target(&seed);
        for at in (0..seed.len()).step_by(37) {
            target(&seed[..at]);
            for value in [0, 0x7f, 0xff, seed[at] ^ 1] {
                let mut damaged = seed.clone();
                damaged[at] = value;
                target(&damaged);
            }
        }
        seeds += 1;
    }
    assert!(seeds > 1, "{folder}");
    storm(name, target);
}

/// Mutates and mixes seeds for this many seconds (`JERBOA_FUZZ_SECONDS`), where cargo-fuzz is not
/// installed. Mutations are random, without coverage guidance.
fn storm(name: &str, target: fn(&[u8])) {
    let Some(seconds) = std::env::var("JERBOA_FUZZ_SECONDS")
        .ok()
        .and_then(|n| n.parse().ok())
    else {
        return;
    };
    let folder = format!("{}/../crate/fuzz/seeds/{name}", env!("CARGO_MANIFEST_DIR"));
    let paths = std::fs::read_dir(&folder)
        .expect(&folder)
        .map(|entry| entry.expect("an entry").path());
    let seeds: Vec<Vec<u8>> = paths
        .map(|path| std::fs::read(path).expect("a seed"))
        .collect();
    let end = std::time::Instant::now() + Duration::from_secs(seconds);
    let mut state = seconds.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % below.max(1)
    };
    let mut runs = 0u64;
    let mut slowest = Duration::ZERO;

    while std::time::Instant::now() < end {
        let mut bytes = seeds[next(seeds.len())].clone();
        for _ in 0..1 + next(8) {
            let at = next(bytes.len());
            let other = &seeds[next(seeds.len())];

            match next(7) {
                0 => bytes
                    .iter_mut()
                    .skip(at)
                    .take(1)
                    .for_each(|b| *b ^= 1 << next(8)),
                1 => bytes
                    .iter_mut()
                    .skip(at)
                    .take(1 + next(4))
                    .for_each(|b| *b = [0, 1, 0x7f, 0x80, 0xff, b'9', b'"', b'{'][next(8)]),
                2 => drop(bytes.drain(at..(at + 1 + next(40)).min(bytes.len()))),
                3 => {
                    let from = next(other.len());
                    let piece = other[from..(from + 1 + next(60)).min(other.len())].to_vec();
                    drop(bytes.splice(at..at, piece));
                }
                4 => {
                    let piece = bytes[at..(at + 1 + next(60)).min(bytes.len())].to_vec();
                    drop(bytes.splice(at..at, piece.repeat(1 + next(9))));
                }
                5 => {
                    let number = [
                        "0",
                        "-1",
                        "1e9",
                        "4294967296",
                        "9007199254740993",
                        "null",
                        "[]",
                        "{}",
                        "\"\"",
                        "true",
                    ][next(10)];
                    let digits = bytes
                        .iter()
                        .enumerate()
                        .filter(|(_, b)| b.is_ascii_digit())
                        .map(|(i, _)| i)
                        .collect::<Vec<_>>();
                    let Some(first) = digits.get(next(digits.len())).copied() else {
                        continue;
                    };
                    let count = bytes[first..]
                        .iter()
                        .take_while(|b| b.is_ascii_digit() || **b == b'.')
                        .count();
                    drop(bytes.splice(first..first + count, number.bytes()));
                }
                _ => bytes.truncate(at),
            }
            bytes.truncate(1 << 16);
        }
        let begun = capped::thread_time();
        let caught = std::panic::catch_unwind(|| target(&bytes));
        let took = capped::thread_time().saturating_sub(begun);
        if caught.is_err() || took > deadline(name) {
            let found = std::env::temp_dir().join(format!("jerboa-{name}-{runs}"));
            std::fs::write(&found, &bytes).expect("written");
            panic!("{name}: {} ({took:?})", found.display());
        }
        (runs, slowest) = (runs + 1, slowest.max(took));
    }
    println!("{name}: {runs} inputs in {seconds} s, the slowest took {slowest:?}");
}

#[test]
fn safetensors() {
    replay("safetensors", targets::safetensors);
}

#[test]
fn gguf() {
    replay("gguf", targets::gguf);
}

#[test]
fn mlc() {
    replay("mlc", targets::mlc);
}

#[test]
fn checkpoint() {
    replay("checkpoint", targets::checkpoint);
}

#[test]
fn config() {
    replay("config", targets::config);
}

#[test]
fn tokenizer() {
    replay("tokenizer", targets::tokenizer);
}

#[test]
fn template() {
    replay("template", targets::template);
}

#[test]
fn audio() {
    replay("audio", targets::audio);
}

#[test]
fn image() {
    replay("image", targets::image);
}
