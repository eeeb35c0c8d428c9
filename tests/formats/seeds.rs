//! Replays what fuzzing starts from and what it once found (crate/fuzz/seeds), whole and damaged in a fixed way.

#[path = "../../crate/fuzz/targets.rs"]
mod targets;

/// Runs a target over each of its seeds, then with one byte after the other changed or the rest cut off.
fn replay(name: &str, target: fn(&[u8])) {
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
fn sound() {
    replay("sound", targets::sound);
}

#[test]
fn picture() {
    replay("picture", targets::picture);
}
