//! The safetensors header and the shard index over any bytes: no panic, and no tensor outside the file.
#![no_main]

use jerboa::format::ShardIndex;
use jerboa::format::safetensors::{header_range, parse_header};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = ShardIndex::parse("index", bytes);
    let size = bytes.len() as u64;
    let Ok(range) = header_range("file", bytes, size) else { return };
    let Ok(header) = parse_header("file", &bytes[range.start as usize..range.end as usize], size) else { return };
    let mut end = range.end;
    for tensor in &header.tensors {
        assert_eq!(tensor.range.start, end);
        assert_eq!(tensor.elements() * tensor.dtype.bits(), tensor.bytes() * 8);
        end = tensor.range.end;
    }
    assert_eq!(end, size);
});
