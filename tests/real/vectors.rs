//! An embedding model: token ids and vectors against sentence-transformers.

use super::{Report, facts, load, strings, text};
use jerboa::exec::RunOptions;
use jerboa::hub::AbortFlag;
use jerboa::task::{EmbedRequest, TaskModel};
use jerboa_tests::golden::{Golden, golden};
use jerboa_tests::relative_l2;
use pollster::block_on;

#[test]
fn minilm() {
    let mut report = Report::new("minilm");
    let mut model = load(
        "sentence-transformers/all-MiniLM-L6-v2",
        RunOptions::default(),
    );
    strings(&mut report, &model, &facts("minilm")["strings"]);
    let TaskModel::Embed(embedder) = &mut model else {
        panic!("MiniLM is an embedding model")
    };
    let sentences: Vec<String> = text("sentences.txt").lines().map(str::to_owned).collect();
    let found = block_on(embedder.embed(
        &sentences,
        &EmbedRequest::default(),
        &AbortFlag::new(),
        |_, _| {},
    ));
    let found = found.expect("vectors");
    let expected = Golden::read(&golden("real/minilm.safetensors")).floats("vectors");
    let vectors = found
        .iter()
        .zip(expected.chunks_exact(embedder.encoder.model.cols()));
    let worst = vectors
        .map(|(found, expected)| relative_l2(found, expected))
        .fold(0.0, f64::max);
    report.check(
        "vectors",
        found.len() == sentences.len() && worst < 1e-5,
        &format!("relative L2 at most {worst:.1e}"),
    );
    report.finish();
}
