//! Headers of safetensors and GGUF files.

use jerboa::Error;
use jerboa::format::{Dtype, gguf, safetensors};
use wasm_bindgen_test::wasm_bindgen_test;

const SAFETENSORS: &[u8] =
    include_bytes!("../../../../www/public/models/stories260K/model.safetensors");
const GGUF: &[u8] = include_bytes!("../../../../tests/golden/quant/gguf_q8_0/model.gguf");

#[wasm_bindgen_test]
fn safetensors_headers_are_read_and_refused_when_cut() {
    let size = SAFETENSORS.len() as u64;
    let range = safetensors::header_range("f", SAFETENSORS, size).expect("a header");
    let header = &SAFETENSORS[range.start as usize..range.end as usize];
    let found = safetensors::parse_header("f", header, size).expect("tensors");
    assert_eq!(found.tensors.len(), 47);
    let first = &found.tensors[0];
    assert_eq!(
        (first.name.as_str(), first.dtype, first.shape.as_slice()),
        ("model.embed_tokens.weight", Dtype::F32, &[512, 64][..])
    );
    for cut in [0, 7, 8, 100, size - 1] {
        let range = safetensors::header_range("f", &SAFETENSORS[..cut as usize], cut);
        let parsed = range.and_then(|range| {
            let end = (range.end as usize).min(cut as usize);
            safetensors::parse_header("f", &SAFETENSORS[range.start as usize..end], cut)
        });
        assert!(
            matches!(parsed, Err(Error::Malformed { .. })),
            "{cut}: {parsed:?}"
        );
    }
}

#[wasm_bindgen_test]
fn gguf_headers_are_read_and_ask_for_more_when_cut() {
    let size = GGUF.len() as u64;
    let found = gguf::parse("f", GGUF, size)
        .expect("a header")
        .expect("whole");
    assert_eq!(found.architecture(), "llama");
    assert!(found.tensors.contains_key("blk.1.attn_q.weight"));
    let begin = found
        .tensors
        .values()
        .map(|t| t.start)
        .min()
        .expect("tensors");
    for cut in (0..begin - 64).step_by(97) {
        let more = gguf::parse("f", &GGUF[..cut as usize], size).expect("no error yet");
        assert_eq!(more, None, "{cut} bytes");
        let error = gguf::parse("f", &GGUF[..cut as usize], cut).expect_err("a file that ends");
        assert!(matches!(error, Error::Malformed { .. }), "{error}");
    }
}
