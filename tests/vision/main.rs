//! Image processors against transformers', and positions of mixed sequences, with expectations of
//! tests/golden/vision.

mod encoders;
mod image_prompts;
mod joint_embedding;
mod video;

use jerboa::vision::{
    ImageProcessor, MropeSections, MropeSpan, ProcessorKind, RgbImage, decode::decode,
    mrope_positions,
};
use jerboa_tests::golden::golden;
use serde_json::Value;

fn expectations(file: &str) -> Value {
    let text = std::fs::read(golden("vision").join(file)).expect("a golden file");
    serde_json::from_slice(&text).expect("JSON")
}

fn image(file: &str, processor: &ImageProcessor) -> RgbImage {
    let bytes = std::fs::read(golden("vision/files").join(file)).expect("an image");
    decode(&bytes, processor.transparent_to_white).unwrap_or_else(|e| panic!("{file}: {e}"))
}

fn numbers(value: &Value) -> Vec<usize> {
    match value {
        Value::Array(list) => list.iter().flat_map(numbers).collect(),
        other => vec![other.as_u64().expect("a count") as usize],
    }
}

/// pixel_values in the reference's layout, flat: tiles in order, padded with zeros to `full`
/// numbers.
fn pixel_values(processor: &ImageProcessor, image: &RgbImage, full: usize) -> Vec<f32> {
    let tiles = processor.tiles(image).expect("tiles");
    let padded = matches!(
        processor.kind,
        ProcessorKind::Grid(_) | ProcessorKind::Budget { .. }
    );
    let mut values = Vec::new();
    for tile in &tiles {
        // A patch as large as the tile is the tile in planes.
        let order = processor.order(tile.width);
        values.extend(processor.rows(&[tile], &order, &order.tile_positions(tile)));
        if padded {
            values.resize(values.len().next_multiple_of(full / tiles.len()), 0.0);
        }
    }
    values
}

/// Checks an image's values: the maximum error in levels, and the mean error.
fn compare(processor: &ImageProcessor, name: &str, file: &str, expected: &Value) -> (i32, f64) {
    let image = image(file, processor);
    let shape = numbers(&expected["shape"]);
    let full: usize = shape.iter().product();
    let values = pixel_values(processor, &image, full);
    assert_eq!(values.len(), full, "{name} {file} {shape:?}");
    let once = expected["once"].as_bool().unwrap_or(false);
    let mut far = 0;
    let levels = expected["levels"].as_str().expect("hex").as_bytes();
    let table = &processor.pixel_values;
    for (k, pair) in levels.chunks(2).enumerate() {
        // Index of a value in the full reference, which repeats frames.
        let at = if once {
            (k * 7919 + 13) % (full / 2)
        } else {
            (k * 7919 + 13) % full
        };
        let at = if once {
            at / 768 * 1536 + at % 768 / 256 * 512 + at % 256
        } else {
            at
        };
        let level = i32::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let value = values[at];
        let color = (0..3).find(|c| table[*c].contains(&value));
        // A value that is no level is padding.
        if let Some(color) = color.filter(|_| {
            value != 0.0 || level == 0 || matches!(processor.kind, ProcessorKind::Budget { .. })
        }) {
            let found = table[color].iter().position(|v| *v == value).unwrap() as i32;
            far = far.max((found - level).abs());
        }
    }
    let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / full as f64;
    let square = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / full as f64;
    let std = ((square - mean * mean) * full as f64 / (full - 1) as f64).sqrt();
    let apart = |name: &str, found: f64| (expected[name].as_f64().unwrap() - found).abs();
    (far, apart("mean", mean).max(apart("std", std)))
}

fn grids(processor: &ImageProcessor, file: &str, expected: &Value) {
    let image = image(file, processor);
    let layout = processor
        .layout(image.width, image.height)
        .expect("a layout");
    let patches: Vec<usize> = layout
        .tile_sizes()
        .flat_map(|(h, w)| {
            let order = processor.order(w);
            [h / order.patch, w / order.patch]
        })
        .collect();
    if let Some(grid) = expected.get("image_grid_thw") {
        assert_eq!(numbers(grid)[1..], patches, "{file}");
    }
    if let Some(shapes) = expected.get("spatial_shapes") {
        assert_eq!(numbers(shapes), patches, "{file}");
    }
    if let Some(tokens) = expected.get("num_soft_tokens_per_image") {
        let (h, w) = layout.tile_sizes().next().unwrap();
        assert_eq!(processor.tokens(h, w), Some(numbers(tokens)[0]), "{file}");
    }
    if let Some(rows) = expected.get("rows") {
        assert_eq!(
            (numbers(rows)[0], numbers(&expected["cols"])[0]),
            layout.grid,
            "{file}"
        );
    }
}

#[test]
fn processors_equal_transformers() {
    let all = expectations("images.json");
    let mut report = String::new();
    for (name, settings) in all["processors"].as_object().unwrap() {
        let mut config = settings["kwargs"].clone();
        config["image_processor_type"] = settings["cls"].clone();
        config["resample"] = settings["resample"].clone();
        config["image_mean"] = settings["mean"].clone();
        config["image_std"] = settings["std"].clone();
        let processor = ImageProcessor::from_config(&config).unwrap();
        for (file, expected) in settings["files"].as_object().unwrap() {
            grids(&processor, file, expected);
            let (far, moments) = compare(&processor, name, file, expected);
            // JPEG decoders round differently; everything else is equal bit for bit.
            let (levels, close) = if file.ends_with("jpg") {
                (3, 4e-3)
            } else {
                (0, 2e-6)
            };
            if far > levels || moments > close {
                report += &format!("{name} {file}: {far} levels, moments {moments:.1e}\n");
            }
        }
    }
    assert!(report.is_empty(), "\n{report}");
}

#[test]
fn positions_of_mixed_sequences() {
    let cases = expectations("mrope.json");
    let cases = cases.as_array().unwrap();
    assert_eq!(cases.len(), 42);
    for case in cases {
        let span = |span: &Value| match span {
            Value::Array(grid) => {
                let side = |i: usize| grid[i].as_u64().unwrap() as usize;
                let interval = grid.get(3).map_or(1.0, |v| v.as_f64().unwrap());
                MropeSpan::Grid {
                    frames: side(0),
                    height: side(1),
                    width: side(2),
                    interval,
                }
            }
            count => MropeSpan::Text(count.as_u64().unwrap() as usize),
        };
        let spans: Vec<MropeSpan> = case["spans"].as_array().unwrap().iter().map(span).collect();
        let found = mrope_positions(&spans);
        for direction in 0..3 {
            let row: Vec<usize> = found.tokens.iter().map(|p| p[direction] as usize).collect();
            assert_eq!(
                row,
                numbers(&case["positions"][direction]),
                "{} {}",
                case["family"],
                case["layout"]
            );
        }
        let offset = case["offset"].as_i64().unwrap();
        let last = found
            .tokens
            .iter()
            .flatten()
            .max()
            .map_or(0, |p| i64::from(*p) + 1);
        assert_eq!(
            last - found.tokens.len() as i64,
            offset,
            "{}",
            case["layout"]
        );
        // Where positions in time exceed those of later tokens, generation still continues after
        // the last token.
        let ahead = spans
            .iter()
            .any(|span| matches!(span, MropeSpan::Grid { frames: 2.., .. }));
        assert!(
            found.offset == offset || ahead && found.offset < offset,
            "{}",
            case["layout"]
        );
    }
}

#[test]
fn rope_frequencies_are_divided_among_axes() {
    let directions =
        |sections: &MropeSections, count| (0..count).map(|j| sections.axis(j)).collect::<Vec<_>>();
    let interleaved = MropeSections {
        sizes: [4, 2, 2],
        interleaved: true,
    };
    assert_eq!(directions(&interleaved, 8), [0, 1, 2, 0, 1, 2, 0, 0]);
    let consecutive = MropeSections {
        sizes: [2, 3, 3],
        interleaved: false,
    };
    assert_eq!(directions(&consecutive, 8), [0, 0, 1, 1, 1, 2, 2, 2]);
}

#[test]
fn damaged_files_are_refused() {
    let whole = std::fs::read(golden("vision/files/jpeg_97x131.jpg")).unwrap();
    for end in [0, 2, 40, 300] {
        assert!(decode(&whole[..end], true).is_err(), "{end} bytes");
    }
    let png = std::fs::read(golden("vision/files/odd_37x53.png")).unwrap();
    assert!(
        decode(&png[..400], true)
            .unwrap_err()
            .to_string()
            .contains("damaged")
    );
}
