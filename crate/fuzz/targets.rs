//! Processes arbitrary bytes, by kind of file: no panic, no unbounded time or memory, no read
//! outside the file. Shared by the fuzz targets and by the test that replays the committed seeds.

use jerboa::arch::{self, Container, LoadConfig};
use jerboa::audio::wav;
use jerboa::format::gguf::{self, config::RopeFactors};
use jerboa::format::safetensors::{header_range, parse_header};
use jerboa::format::{
    Checkpoint, CheckpointFile, PartBytes, ShardIndex, Weights, check_parts, detect, mlc, transcode,
};
use jerboa::text::{ChatInput, ChatTemplate, SpecialTokens, Tokenizer};
use jerboa::vision::{ImageProcessor, header};
use serde_json::{Value, json};

/// Reads weights: layouts, slices, and the values of small ones. `data` simulates the bytes of the
/// files.
fn read(weights: &Weights, data: &[u8]) {
    for weight in weights.iter() {
        let _ = (
            weight.layout(),
            check_parts(weight),
            weight.slice("slice", 1, vec![2, weight.rows_cols().1]),
        );
        let (rows, cols) = weight.rows_cols();
        if weight.stored_bytes() > 1 << 14 || rows.saturating_mul(cols) > 1 << 16 {
            continue;
        }
        let parts = weight.parts.iter().try_fold(PartBytes::new(), |all, part| {
            assert!(
                part.info.range.start <= part.info.range.end,
                "a range that ends before it begins"
            );
            Some(all.with(part.role, data.get(..part.info.bytes() as usize)?))
        });
        if let Some(Ok(packed)) = parts.map(|parts| transcode(weight, &parts, true)) {
            assert_eq!(
                packed.rows * packed.cols,
                rows * cols,
                "a matrix of another size"
            );
        }
    }
}

/// A safetensors file or shard index.
pub fn safetensors(bytes: &[u8]) {
    let _ = ShardIndex::parse("index", bytes);
    let size = bytes.len() as u64;
    let Ok(range) = header_range("file", bytes, size) else {
        return;
    };
    let Ok(header) = parse_header(
        "file",
        &bytes[range.start as usize..range.end as usize],
        size,
    ) else {
        return;
    };
    let mut end = range.end;
    for tensor in &header.tensors {
        assert_eq!(tensor.range.start, end);
        assert_eq!(tensor.elements() * tensor.dtype.bits(), tensor.bytes() * 8);
        end = tensor.range.end;
    }
    assert_eq!(end, size);
}

/// A GGUF file: its tokenizer, configuration, graph and weights.
pub fn gguf(bytes: &[u8]) {
    let size = bytes.len() as u64;
    let Ok(Some(file)) = gguf::parse("file", bytes, size) else {
        return;
    };
    let _ = (
        file.tokenizer(),
        file.tokenizer_config(),
        file.stop_ids(),
        file.checkpoint(),
    );
    if let Ok(family) = arch::find_gguf(&file) {
        let _ = arch::graph(&arch::load_config(
            file.config(family, &RopeFactors::default()),
            Container::Gguf,
        ));
        let weights = file.weights(family);
        assert!(
            weights
                .iter()
                .all(|w| w.parts.iter().all(|p| p.info.range.end <= size)),
            "bytes behind the file"
        );
        read(&weights, bytes);
    }
}

/// The two parts of an input, separated by a line of dashes.
fn halves(bytes: &[u8]) -> Option<(&str, &str)> {
    std::str::from_utf8(bytes).ok()?.split_once("\n---\n")
}

/// An MLC shard list, then the chat configuration.
pub fn mlc(bytes: &[u8]) {
    let Some((list, config)) = halves(bytes) else {
        return;
    };
    let list = mlc::parse_shards("list", list);
    let config = mlc::config(config, arch::find_mlc);

    if let Ok((config, _)) = &config {
        let _ = arch::graph(&arch::load_config(config.clone(), Container::Mlc));
    }
    if let (Ok(list), Ok((config, family))) = (list, config)
        && let Ok(weights) = mlc::weights(&list, &config, family)
    {
        read(&Weights::from_list(weights), &[0x5a; 1 << 14]);
    }
}

/// A config.json, then the header of a safetensors file: quantized weights of GPTQ, AWQ, MLX and
/// others by names and shapes.
pub fn checkpoint(bytes: &[u8]) {
    let Some((config, header)) = halves(bytes) else {
        return;
    };
    let Ok(config) = serde_json::from_str::<Value>(config) else {
        return;
    };
    let normalized = LoadConfig::from(&config);
    let _ = (
        arch::graph(&normalized),
        arch::encoder_graph(&normalized, &arch::EncoderHead::Hidden),
    );

    let tensors =
        serde_json::from_str::<jerboa::SortedMap<String, Value>>(header).unwrap_or_default();
    let data = tensors
        .values()
        .filter_map(|t: &Value| t["data_offsets"][1].as_u64())
        .max()
        .unwrap_or(0);
    let Some(size) = data.checked_add(8 + header.len() as u64) else {
        return;
    };
    let Ok(header) = parse_header("file", header.as_bytes(), size) else {
        return;
    };
    let checkpoint = Checkpoint {
        files: vec![CheckpointFile {
            name: "file".into(),
            size,
        }],
        tensors: header
            .tensors
            .into_iter()
            .map(|t| (t.name.clone(), t))
            .collect(),
        metadata: jerboa::SortedMap::new(),
    };
    let state = br#"{"shape": [8, 64], "blocksize": 64, "dtype": "float16"}"#.to_vec();
    let side = checkpoint
        .tensors
        .keys()
        .filter(|n| n.contains("quant_state"))
        .map(|n| (n.clone(), state.clone()));
    let mut weights = detect(&config, &checkpoint, &side.collect());
    for weight in weights.iter_mut() {
        weight.set_cols(64);
    }
    read(&weights, &[0x5a; 1 << 14]);
}

/// A config.json or a preprocessor_config.json: each family and the image processors with arbitrary
/// values.
pub fn config(bytes: &[u8]) {
    let Ok(config) = serde_json::from_slice::<Value>(bytes) else {
        return;
    };
    let normalized = LoadConfig::from(&config);
    if let Ok(graph) = arch::graph(&normalized) {
        assert!(
            graph.nodes.len() < 1 << 20,
            "a graph of {} nodes",
            graph.nodes.len()
        );
    }
    for head in [arch::EncoderHead::Hidden, arch::EncoderHead::Score] {
        let _ = arch::encoder_graph(&normalized, &head);
    }
    let _ = (
        arch::speech_graphs(&normalized),
        arch::codec_graph(&normalized),
        arch::is_encoder(&normalized),
    );
    if let Ok(processor) = ImageProcessor::from_config(&config) {
        for (width, height) in [(1, 1), (640, 480), (3, 5000)] {
            let _ = processor.layout(width, height);
        }
    }
}

/// A tokenizer.json, then a text: encoded in every mode, and decoded.
pub fn tokenizer(bytes: &[u8]) {
    let Some((file, text)) = halves(bytes) else {
        return;
    };
    let Ok(tokenizer) = Tokenizer::from_json(file.as_bytes()) else {
        return;
    };
    // The cost of a pattern grows with the text; a prompt has some thousand characters.
    let text: String = text.chars().take(2000).collect();
    for special in [false, true] {
        if let Ok(ids) = tokenizer.encode(&text, special) {
            assert!(
                ids.iter().all(|id| *id < tokenizer.id_bound()),
                "an id behind the vocabulary"
            );
            let _ = (tokenizer.decode(&ids, true), tokenizer.decode(&ids, false));
        }
        let _ = tokenizer.encode_trusted(&text, special);
    }
    let _ = tokenizer.encode_pair(&text, "and", 64);
    let mut stream = tokenizer.stream_decoder(true);
    (0..64).for_each(|id| drop(stream.push(&tokenizer, id)));
    let _ = stream.finish();
}

/// A chat template, rendered for conversations with and without tools.
pub fn template(bytes: &[u8]) {
    let Ok(source) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(template) = ChatTemplate::new(source) else {
        return;
    };
    let says = |role: &str, content: &str| json!({ "role": role, "content": content });
    let call = json!({ "function": { "name": "f", "arguments": { "x": 1 } } });
    let conversations = [
        vec![says("user", "Hi <s> there")],
        vec![
            says("system", "Be brief."),
            says("user", "1 + 1?"),
            says("assistant", "2"),
            says("user", "Sure?"),
        ],
        vec![
            says("user", "x"),
            json!({ "role": "assistant", "content": null, "tool_calls": [call] }),
            says("tool", "1"),
        ],
        vec![],
    ];
    let tools = json!({ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } });
    let mut special = SpecialTokens::default();
    special.set("bos_token", "<s>");
    for (index, messages) in conversations.into_iter().enumerate() {
        let input = ChatInput {
            messages,
            tools: (index % 2 == 1).then(|| vec![tools.clone()]),
            add_generation_prompt: index % 2 == 0,
            ..ChatInput::default()
        };
        if let Ok(prompt) = template.render(&input, &special, &["<s>".into()]) {
            assert!(
                prompt.text.len() <= 16 << 20,
                "a prompt of {} bytes",
                prompt.text.len()
            );
        }
    }
}

/// A WAV file.
pub fn audio(bytes: &[u8]) {
    if let Ok(audio) = wav::read(bytes, "file") {
        assert!(
            audio.samples.len() <= bytes.len(),
            "samples that the file has not"
        );
    }
}

/// The header of an image file.
pub fn image(bytes: &[u8]) {
    if let Ok(header) = header::ImageHeader::read(bytes) {
        assert!(
            u64::from(header.width) * u64::from(header.height) <= header::MAX_PIXELS
                && header.width > 0
        );
        assert!((1..=8).contains(&header.orientation));
    }
}
