//! Videos against transformers: selected frames and sizes, the prompt with timestamps, pixels,
//! positions, logits and greedy tokens of text, image, text, video, text.
//! tests/golden/scripts/make_video.py makes the expectations.

use super::encoders::{encoder_on, processor};
use super::{expectations, numbers};
use jerboa::exec::{PrecisionOptions, RunOptions, SoftEmbeddings, content_hash};
use jerboa::kernels::attention::Kv;
use jerboa::vision::{
    ImageProcessor, ImageTokens, MropeSpan, RgbImage, TileBuilder, TimestampStyle, VideoProcessor,
    mrope_positions,
};
use jerboa_tests::golden::{Golden, go_on, golden, load};
use jerboa_tests::{limit, open, relative_l2};
use serde_json::{Value, json};

fn told(class: &str) -> TimestampStyle {
    match class {
        "Qwen3VLVideoProcessor" => TimestampStyle::Text,
        "Qwen2VLVideoProcessor" => TimestampStyle::Positions(4.0),
        _ => TimestampStyle::Images,
    }
}

/// The video processor of a class with default settings.
fn plain(class: &str) -> VideoProcessor {
    let mut config = match class {
        "Qwen3VLVideoProcessor" => {
            json!({ "patch_size": 16, "size": { "shortest_edge": 131_072, "longest_edge": 786_432 } })
        }
        "Qwen2VLVideoProcessor" => {
            json!({ "size": { "shortest_edge": 100_352, "longest_edge": 602_112 } })
        }
        _ => {
            json!({ "video_sampling": { "fps": 1, "max_frames": 64, "video_size": { "longest_edge": 512 } } })
        }
    };
    config["video_processor_type"] = class.into();
    let images = ImageProcessor::from_config(&config).expect("a processor");
    VideoProcessor::new(&config, &images, told(class)).expect("a processor")
}

#[test]
fn frames_and_sizes_equal_the_processors() {
    let cases = expectations("video/cases.json");
    for case in cases["chosen"].as_array().expect("a list") {
        let class = case["cls"].as_str().expect("a name");
        let total = case["total"].as_u64().unwrap() as usize;
        let rate = case["rate"].as_f64().unwrap();

        let found = plain(class).sample_frames(total, rate, None);
        assert_eq!(
            found,
            numbers(&case["indices"]),
            "{class}, {total} frames at {rate}"
        );
    }
    for case in cases["sizes"].as_array().expect("a list") {
        let class = case["cls"].as_str().expect("a name");
        let frames = case["frames"].as_u64().unwrap() as usize;
        let of = numbers(&case["of"]);

        let layout = plain(class).layout(of[1], of[0], frames).expect("a size");
        let sizes: Vec<(usize, usize)> = layout.tile_sizes().collect();
        let wanted = numbers(&case["size"]);
        assert_eq!(
            (sizes.len(), sizes[0]),
            (frames, (wanted[0], wanted[1])),
            "{class}, {frames} of {of:?}"
        );
    }
}

/// The video settings that the script gave to a checkpoint.
fn videos(name: &str) -> VideoProcessor {
    let size = match name {
        "smolvlm" => json!({ "longest_edge": 128 }),
        "qwen2_5_vl" => json!({ "shortest_edge": 1568, "longest_edge": 9408 }),
        _ => json!({ "shortest_edge": 4096, "longest_edge": 24_576 }),
    };
    let file = golden(&format!("vision/models/{name}/preprocessor_config.json"));
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(file).expect("settings")).expect("JSON");
    let class = match name {
        "smolvlm" => "SmolVLMVideoProcessor",
        "qwen2_5_vl" => "Qwen2VLVideoProcessor",
        _ => "Qwen3VLVideoProcessor",
    };
    config["size"] = size;
    config["video_processor_type"] = class.into();
    let mut images = ImageProcessor::from_config(&config).expect("a processor");
    images.tile_tokens = Some(4);
    VideoProcessor::new(&config, &images, told(class)).expect("a processor")
}

/// The tiles of a golden file's video, compared with its pixels.
fn frames(name: &str, videos: &VideoProcessor, expected: &Golden) -> TileBuilder {
    let shape = expected.shape("frames");
    let layout = videos
        .layout(shape[2], shape[1], shape[0])
        .expect("a layout");
    let take = || {
        let mut intake = TileBuilder::new(&videos.processor, layout.clone());
        // In chunks that do not align with frames.
        expected
            .bytes("frames")
            .chunks(shape[2] * 3 * 7)
            .for_each(|rows| intake.push(rows, 3).expect("rows"));
        intake
    };
    let tiles = take().finish().expect("frames");
    let order = videos
        .processor
        .order(if name == "smolvlm" { 64 } else { 0 });
    let mut values = Vec::new();
    for group in tiles.chunks(videos.temporal_patch()) {
        let group: Vec<&RgbImage> = group.iter().collect();
        values.extend(
            videos
                .processor
                .rows(&group, &order, &order.tile_positions(group[0])),
        );
    }
    let cols = order.cols() / 3;
    let planes = videos.processor.pixel_values.len();

    let levels = expected.bytes("levels");
    assert_eq!(values.len(), levels.len(), "{name}");
    for (i, (value, level)) in values.iter().zip(levels).enumerate() {
        let wanted = videos.processor.pixel_values[i / cols % planes][usize::from(level)];
        assert!(
            (value - wanted).abs() < 1e-6,
            "{name}: number {i} is {value}, not {wanted}"
        );
    }
    take()
}

fn check(name: &str) {
    let expected = Golden::read(&golden(&format!("vision/video/{name}.safetensors")));
    let cases = expectations("video/cases.json");
    let case = &cases["texts"][name];
    let videos = videos(name);
    let intake = frames(name, &videos, &expected);
    let mut seconds: Vec<f64> = case["seconds"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s.as_f64().unwrap())
        .collect();
    seconds.push(2.0 * seconds[seconds.len() - 1] - seconds[seconds.len() - 2]);
    let marks = ImageTokens::for_processor(&videos.processor, &json!({}));
    let text = videos.prompt_text(intake.layout(), &seconds, &marks);
    let whole = case["text"].as_str().expect("a text");
    assert!(
        whole.contains(&text) && whole.contains(&format!("Look {}", before(&text, whole))),
        "{name}: {text}"
    );
    let tiles = intake.finish().expect("frames");
    let overrides = PrecisionOptions {
        kv_type: Some(Kv::F32),
        ..PrecisionOptions::default()
    };
    let options = RunOptions {
        overrides,
        prefill_chunk: 16,
        max_context: Some(256),
        ..RunOptions::default()
    };
    let folder = golden(&format!("vision/models/{name}"));
    let mut session = load(open(&Default::default()), &folder, options).expect(name);
    let mut vision = encoder_on(session.gpu(), name);
    let add = |encoded: SoftEmbeddings, content| {
        session
            .soft_token_cache()
            .borrow_mut()
            .add(content, encoded)
    };
    let mut images = Vec::new();
    if name != "smolvlm" {
        let shape = expected.shape("image.0");
        let processor = exact(&processor(name), &videos.processor);

        let still = RgbImage::new(shape[1], shape[0], expected.bytes("image.0")).expect("an image");
        let tiles = processor.tiles(&still).expect("tiles");
        let encoded =
            pollster::block_on(vision.encode(session.gpu(), &tiles, 1, &processor)).expect("rows");
        images.push((300, add(encoded, content_hash(&tiles, &[]))));
    }
    let together = videos.temporal_patch();
    let encoded =
        pollster::block_on(vision.encode(session.gpu(), &tiles, together, &videos.processor))
            .expect("rows");
    let grids = encoded.layout.grids().to_vec();
    let interval = videos.interval(&seconds);

    let video = add(
        encoded.at_interval(interval),
        content_hash(&tiles, &seconds),
    );
    images.push((if name == "smolvlm" { 300 } else { 301 }, video));
    let ids: Vec<u32> = expected
        .ints("input_ids")
        .iter()
        .map(|id| *id as u32)
        .collect();
    if name != "smolvlm" {
        same_positions(&expected, &ids, (&grids, interval));
    }
    let spliced = session
        .splice_soft_tokens(&ids, &images)
        .expect("a placeholder for each token");
    let logits = pollster::block_on(session.all_rows(&spliced, false)).expect("logits");
    let error = relative_l2(&logits, &expected.floats("logits"));
    assert!(error < limit(session.gpu(), 3e-4), "{name}: {error:e}");
    let wanted: Vec<u32> = expected
        .ints("greedy")
        .iter()
        .map(|id| *id as u32)
        .collect();
    pollster::block_on(session.prefill(&spliced, 0)).expect("the prompt");
    assert_eq!(go_on(&mut session, 16), wanted, "{name}");
}

/// Text before the video: Qwen's template puts a special token there.
fn before(text: &str, whole: &str) -> String {
    let mark = "<|vision_start|>";
    if whole.contains(mark) {
        format!("{mark}{text}")
    } else {
        text.into()
    }
}

/// Pixel levels without the reference's rounding to 16 bits, which these files do not have.
fn exact(processor: &ImageProcessor, videos: &ImageProcessor) -> ImageProcessor {
    ImageProcessor {
        pixel_values: videos.pixel_values.clone(),
        ..processor.clone()
    }
}

fn same_positions(expected: &Golden, ids: &[u32], (grids, interval): (&[(usize, usize)], f64)) {
    let mut spans = Vec::new();
    let mut at = 0;
    let mut group = 0;

    while at < ids.len() {
        let span = match ids[at] {
            300 => MropeSpan::image(2, 2),
            301 if interval > 0.0 => MropeSpan::Grid {
                frames: grids.len(),
                height: grids[0].0,
                width: grids[0].1,
                interval,
            },
            301 => {
                group += 1;
                MropeSpan::image(grids[group - 1].0, grids[group - 1].1)
            }
            _ => MropeSpan::Text(1),
        };
        at += span.tokens();
        spans.push(span);
    }
    let found = mrope_positions(&spans);
    let wanted = expected.ints("position_ids");
    for direction in 0..3 {
        let row: Vec<i32> = found.tokens.iter().map(|p| p[direction] as i32).collect();
        assert_eq!(
            row,
            wanted[direction * ids.len()..(direction + 1) * ids.len()]
        );
    }
}

#[test]
fn qwen3_vl_with_times_in_words() {
    check("qwen3_vl");
}

#[test]
fn qwen3_5_with_times_in_words() {
    check("qwen3_5");
}

#[test]
fn qwen2_5_vl_with_times_in_positions() {
    check("qwen2_5_vl");
}

#[test]
fn smolvlm_with_small_images() {
    check("smolvlm");
}
