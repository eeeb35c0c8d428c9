//! Every malformed safetensors input with its error, and properties of the header parser.

use jerboa::Error;
use jerboa::format::safetensors::{MAX_HEADER_BYTES, header_range, parse_header};
use jerboa::format::{Checkpoint, Dtype, ShardIndex};
use proptest::prelude::*;

/// Reads a whole file like the hub: first the header's range, then the header.
fn parse(file: &[u8]) -> jerboa::Result<jerboa::format::safetensors::SafetensorsHeader> {
    let range = header_range("f", file, file.len() as u64)?;
    parse_header(
        "f",
        &file[range.start as usize..range.end as usize],
        file.len() as u64,
    )
}

fn file(header: &[u8], data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.resize(bytes.len() + data, 0);
    bytes
}

/// One tensor of two u16 at these offsets.
fn tensor(name: &str, begin: i64, end: i64) -> String {
    format!(r#""{name}":{{"dtype":"F16","shape":[2],"data_offsets":[{begin},{end}]}}"#)
}

fn tensors(list: &[String]) -> Vec<u8> {
    format!("{{{}}}", list.join(",")).into_bytes()
}

#[test]
fn each_malformed_file_has_its_error() {
    let good = tensors(&[tensor("a", 0, 4), tensor("b", 4, 8)]);
    let one = |json: &str| format!(r#"{{"a":{json}}}"#).into_bytes();
    let length = |n: u64| {
        let mut bytes = file(&good, 8);
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        bytes
    };
    let mut cut_header = file(&good, 8);
    cut_header.truncate(30);
    let mut not_utf8 = good.clone();
    not_utf8[3] = 0xff;
    let cases: Vec<(&str, Vec<u8>, &str, &str)> = vec![
        (
            "nothing at all",
            vec![],
            "malformed",
            "has 0 bytes, too few",
        ),
        (
            "seven bytes",
            vec![1; 7],
            "malformed",
            "has 7 bytes, too few",
        ),
        (
            "header of 2^63",
            length(1 << 63),
            "malformed",
            "length is 9223372036854775808 bytes",
        ),
        (
            "header of 2^64-1",
            length(u64::MAX),
            "malformed",
            "length is 18446744073709551615 bytes",
        ),
        (
            "header over the limit",
            length(MAX_HEADER_BYTES + 1),
            "malformed",
            "the limit is",
        ),
        (
            "header of nothing",
            length(0),
            "malformed",
            "the minimum is 2",
        ),
        (
            "header beyond the end",
            length(100_000),
            "malformed",
            "cut off",
        ),
        ("cut inside the header", cut_header, "malformed", "cut off"),
        (
            "cut inside the data",
            file(&good, 7),
            "malformed",
            "out of range",
        ),
        (
            "bytes left over",
            file(&good, 9),
            "malformed",
            "belong to no tensor",
        ),
        ("not UTF-8", file(&not_utf8, 8), "malformed", "not UTF-8"),
        (
            "not JSON",
            file(b"{\"a\": nonsense}", 0),
            "malformed",
            "not a valid JSON header",
        ),
        ("a list", file(b"[1,2]", 0), "malformed", "begin with '{'"),
        (
            "two objects",
            file(b"{} {}", 0),
            "malformed",
            "not a valid JSON header",
        ),
        (
            "a name twice",
            file(&tensors(&[tensor("a", 0, 4), tensor("a", 4, 8)]), 8),
            "malformed",
            "a occurs twice",
        ),
        (
            "metadata twice",
            file(br#"{"__metadata__":{},"__metadata__":{}}"#, 0),
            "malformed",
            "occurs twice",
        ),
        (
            "metadata of numbers",
            file(br#"{"__metadata__":{"a":1}}"#, 0),
            "malformed",
            "__metadata__",
        ),
        (
            "no shape",
            file(&one(r#"{"dtype":"F16","data_offsets":[0,4]}"#), 4),
            "malformed",
            "tensor a: missing field",
        ),
        (
            "negative offset",
            file(&tensors(&[tensor("a", -4, 4)]), 4),
            "malformed",
            "tensor a",
        ),
        (
            "offsets swapped",
            file(&tensors(&[tensor("a", 4, 0)]), 4),
            "malformed",
            "before its start",
        ),
        (
            "out of range",
            file(&tensors(&[tensor("a", 0, 400)]), 4),
            "malformed",
            "out of range",
        ),
        (
            "offset of 2^63",
            file(&tensors(&[tensor("a", 0, i64::MAX)]), 4),
            "malformed",
            "out of range",
        ),
        (
            "overlap",
            file(&tensors(&[tensor("a", 0, 4), tensor("b", 2, 6)]), 6),
            "malformed",
            "b overlaps a by 2",
        ),
        (
            "gap",
            file(&tensors(&[tensor("a", 0, 4), tensor("b", 6, 10)]), 10),
            "malformed",
            "gap of 2 bytes",
        ),
        (
            "gap at the begin",
            file(&tensors(&[tensor("a", 4, 8)]), 8),
            "malformed",
            "between the header and a",
        ),
        (
            "too few bytes",
            file(&tensors(&[tensor("a", 0, 2)]), 2),
            "malformed",
            "needs 4",
        ),
        (
            "unknown dtype",
            file(
                &one(r#"{"dtype":"F12","shape":[2],"data_offsets":[0,3]}"#),
                3,
            ),
            "unsupported_encoding",
            "tensor a is stored as F12",
        ),
        (
            "shape overflows",
            file(
                &one(
                    r#"{"dtype":"F32","shape":[4294967295,4294967295,4294967295],"data_offsets":[0,4]}"#,
                ),
                4,
            ),
            "malformed",
            "overflows",
        ),
        (
            "dimension of 2^40",
            file(
                &one(r#"{"dtype":"F32","shape":[1099511627776,0],"data_offsets":[0,0]}"#),
                0,
            ),
            "malformed",
            "overflows",
        ),
        (
            "half a byte",
            file(
                &one(r#"{"dtype":"F4","shape":[3],"data_offsets":[0,2]}"#),
                2,
            ),
            "malformed",
            "needs 2",
        ),
    ];
    for (what, bytes, code, part) in cases {
        let error = parse(&bytes).expect_err(what);
        assert_eq!(error.code(), code, "{what}: {error}");
        assert!(error.to_string().contains(part), "{what}: {error}");
    }
    assert_eq!(
        parse(&file(&good, 8)).expect("the good one").tensors.len(),
        2
    );
}

#[test]
fn each_malformed_index_has_its_error() {
    let map = |name: &str| format!(r#"{{"weight_map":{{"a":"{name}"}}}}"#);
    for (what, text) in [
        ("not JSON", "<html>".to_string()),
        ("no map", "{}".to_string()),
        ("an empty map", r#"{"weight_map":{}}"#.to_string()),
        ("a path that leaves", map("../../etc/passwd")),
        ("an absolute path", map("/etc/passwd")),
        ("another server", map("https://other.example/x")),
        ("a backslash", map(r"..\\..\\x")),
        ("a query", map("s?download=1")),
    ] {
        assert_eq!(
            ShardIndex::parse("i", text.as_bytes())
                .expect_err(what)
                .code(),
            "malformed",
            "{what}"
        );
    }
    let index = ShardIndex::parse("i", map("s").as_bytes()).expect("an index");
    let shard = |name: &str| {
        (
            "s".to_string(),
            100,
            parse(&file(&tensors(&[tensor(name, 0, 4)]), 4)).expect("a shard"),
        )
    };
    let error = Checkpoint::from_shards(&index, vec![shard("b")]).expect_err("a is not in it");
    assert!(
        matches!(&error, Error::Malformed { reason, .. } if reason.contains("does not contain it")),
        "{error}"
    );
    let error = Checkpoint::from_shards(&index, vec![]).expect_err("no shard");
    assert!(
        matches!(&error, Error::Malformed { reason, .. } if reason.contains("was not loaded")),
        "{error}"
    );
    let header = br#"{"__metadata__":null,"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    assert!(parse(&file(header, 4)).is_ok(), "null metadata");
    let stale = br#"{"metadata":null,"weight_map":{"a":"s","b":"s"}}"#;
    let stale = ShardIndex::parse("i", stale).expect("null counts as absent");
    let checkpoint = Checkpoint::from_shards(&stale, vec![shard("a")]).expect("a stale entry");
    assert!(checkpoint.get("a").is_some() && checkpoint.get("b").is_none());
    let checkpoint = Checkpoint::from_shards(&index, vec![shard("a")]).expect("a checkpoint");
    assert_eq!(
        checkpoint.require("z", "llama").expect_err("no z").code(),
        "missing_tensor"
    );
    assert_eq!(
        checkpoint
            .require("a", "llama")
            .expect("a")
            .expect_shape(&[3])
            .expect_err("shape")
            .code(),
        "shape"
    );
}

/// Well-formed headers with wrong numbers, which a byte fuzzer seldom reaches.
fn any_header() -> impl Strategy<Value = String> {
    let dtype = prop::sample::select(vec![
        "F32", "F16", "BF16", "U8", "F4", "F6_E2M3", "I64", "BOOL", "Q9",
    ]);
    let dim = prop_oneof![0u64..6, Just(1 << 31), Just(1 << 33), any::<u64>()];
    let offset = prop_oneof![0u64..64, any::<u64>()];
    let name = prop::sample::select(vec!["a", "b", "c", "__metadata__", "ä"]);
    let entry = (
        name,
        dtype,
        prop::collection::vec(dim, 0..4),
        offset.clone(),
        offset,
    )
        .prop_map(|(n, d, s, b, e)| {
            format!(r#""{n}":{{"dtype":"{d}","shape":{s:?},"data_offsets":[{b},{e}]}}"#)
        });
    prop::collection::vec(entry, 0..5).prop_map(|entries| format!("{{{}}}", entries.join(",")))
}

/// What this parser accepts, the `safetensors` crate accepts too, with equal results.
fn agrees_with_the_crate(bytes: &[u8]) {
    let Ok(header) = parse(bytes) else { return };
    let theirs = safetensors::SafeTensors::deserialize(bytes).expect("the crate is not stricter");
    assert_eq!(theirs.len(), header.tensors.len());
    for t in &header.tensors {
        let view = theirs.tensor(&t.name).expect("the same names");
        assert_eq!(view.shape(), t.shape);
        assert_eq!(
            view.data(),
            &bytes[t.range.start as usize..t.range.end as usize]
        );
        assert_eq!(format!("{:?}", view.dtype()), t.dtype.name());
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        agrees_with_the_crate(&bytes);
    }

    #[test]
    fn any_header_is_read_or_refused(header in any_header(), data in 0usize..80) {
        agrees_with_the_crate(&file(header.as_bytes(), data));
    }

    #[test]
    fn a_damaged_byte_is_read_or_refused(at in 0usize..140, byte in any::<u8>()) {
        let mut bytes = file(&tensors(&[tensor("a", 0, 4), tensor("b", 4, 8)]), 8);
        let at = at % bytes.len();
        bytes[at] = byte;
        agrees_with_the_crate(&bytes);
    }

    /// What the crate writes is read back unchanged.
    #[test]
    fn files_of_the_crate_are_read(shapes in prop::collection::vec(prop::collection::vec(0usize..5, 0..4), 0..6)) {
        let all: Vec<Dtype> = Dtype::all().filter(|d| d.bits() == 16).collect();
        let data: Vec<Vec<u8>> = shapes.iter().map(|s| vec![7; s.iter().product::<usize>() * 2]).collect();
        let views: Vec<(String, safetensors::tensor::TensorView)> = shapes.iter().zip(&data).enumerate()
            .map(|(i, (shape, bytes))| {
                let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F16, shape.clone(), bytes);
                (format!("t{i}"), view.expect("a view"))
            }).collect();
        let bytes = safetensors::serialize(views, None).expect("a file");
        let header = parse(&bytes).expect("what the crate writes is right");
        prop_assert_eq!(header.tensors.len(), shapes.len());
        for t in &header.tensors {
            prop_assert!(all.contains(&t.dtype));
            prop_assert_eq!(&t.shape, &shapes[t.name[1..].parse::<usize>().expect("an index")]);
        }
    }
}
