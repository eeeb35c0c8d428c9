//! Vision encoders against transformers: tiny random checkpoints of tests/golden/vision/models.

use half::f16;
use jerboa::exec::{ModelFiles, RunOptions, VisionEncoder};
use jerboa::gpu::Gpu;
use jerboa::hub::Source;
use jerboa::vision::{ImageProcessor, ProcessorKind, RgbImage};
use jerboa_tests::checkpoint::ChangedCheckpoint;
use jerboa_tests::golden::{Golden, golden, open};
use jerboa_tests::{gpu, limit, on_units, relative_l2};
use serde_json::{Value, json};
use std::path::Path;

/// The image processor of a folder; those of LFM2-VL and Gemma 4 are written here, so that images
/// keep their size. The reference's pixels were rounded to 16 bits.
pub fn processor(name: &str) -> ImageProcessor {
    let file = golden(&format!("vision/models/{name}/preprocessor_config.json"));
    let config: Value = match std::fs::read(file) {
        Ok(bytes) => serde_json::from_slice(&bytes).expect("JSON"),
        Err(_) if name.starts_with("gemma4") => {
            json!({ "image_processor_type": "Gemma4ImageProcessor", "pooling_kernel_size": 2, "max_soft_tokens": 6 })
        }
        Err(_) => {
            json!({ "image_processor_type": "Lfm2VlImageProcessor", "encoder_patch_size": 16, "min_image_tokens": 1 })
        }
    };
    let mut processor = ImageProcessor::from_config(&config).expect("a processor");

    processor
        .pixel_values
        .iter_mut()
        .flatten()
        .for_each(|v: &mut f32| *v = f16::from_f32(*v).to_f32());
    processor
}

/// The images of a golden file.
pub fn images(golden: &Golden) -> Vec<RgbImage> {
    ["image.0", "image.1"]
        .map(|name: &str| {
            let shape = golden.shape(name);
            RgbImage::new(shape[1], shape[0], golden.bytes(name)).expect("an image")
        })
        .into()
}

/// The tiles of an image; Gemma 4's are as large as the reference's.
pub fn tiles(name: &str, processor: &ImageProcessor, image: &RgbImage) -> Vec<RgbImage> {
    if name.starts_with("gemma4") {
        vec![image.clone()]
    } else {
        processor.tiles(image).expect("tiles")
    }
}

/// The files of a GGUF model including its vision encoder's.
fn beside(name: &str) -> (Source, ModelFiles) {
    pollster::block_on(async {
        let source = open(&golden(&format!("vision/gguf/{name}")))
            .await
            .expect("the folder");
        let files = ModelFiles::open_unchecked(&source, None)
            .await
            .expect("files");
        (source, files)
    })
}

/// The vision encoder of a GGUF model's separate file.
pub fn mmproj_encoder_on(gpu: &Gpu, name: &str) -> VisionEncoder {
    let (source, files) = beside(name);
    pollster::block_on(VisionEncoder::load(
        gpu,
        &source,
        files,
        RunOptions::default(),
    ))
    .expect("a vision encoder")
}

/// Loads a folder's vision encoder.
pub fn vision_encoder(name: &str) -> VisionEncoder {
    encoder_on(gpu(), name)
}

/// Loads it on the given device.
pub fn encoder_on(gpu: &Gpu, name: &str) -> VisionEncoder {
    encoder_of(gpu, &golden(&format!("vision/models/{name}")))
}

fn encoder_of(gpu: &Gpu, folder: &Path) -> VisionEncoder {
    pollster::block_on(async {
        let source = open(folder).await.expect("the folder");
        let config: Value =
            serde_json::from_slice(&source.read("config.json").await.expect("config.json"))
                .expect("JSON");
        let files = ModelFiles::safetensors(&source, config.into())
            .await
            .expect("files");
        VisionEncoder::load(gpu, &source, files, RunOptions::default())
            .await
            .expect("a vision encoder")
    })
}

fn check(name: &str) {
    check_encoder(name, gpu(), vision_encoder(name));
}

fn check_encoder(name: &str, gpu: &Gpu, mut vision: VisionEncoder) {
    let expected = Golden::read(&golden(&format!("vision/models/{name}/golden.safetensors")));
    let processor = processor(name);
    let cols = vision.cols();
    let mut found: Vec<Vec<f32>> = vec![Vec::new(); vision.tower.features];
    for image in images(&expected) {
        let tiles = tiles(name, &processor, &image);
        let rows = pollster::block_on(async {
            let encoded = vision
                .encode(gpu, &tiles, 1, &processor)
                .await
                .expect("rows");
            encoded.read(gpu).await.expect("numbers")
        });
        for row in rows.chunks(cols * found.len()) {
            row.chunks(cols)
                .zip(&mut found)
                .for_each(|(part, all)| all.extend(part));
        }
    }
    let names = ["visual_tokens", "deepstack.0", "deepstack.1"];
    for (name_of, found) in names.iter().zip(found) {
        let error = relative_l2(&found, &expected.floats(name_of));
        assert!(error < limit(gpu, 1e-4), "{name} {name_of}: {error:e}");
    }
    assert_eq!(vision.images_encoded, 2);
}

#[test]
fn on_subgroup_matrices() {
    let gpu = jerboa_tests::open(&on_units(64));
    for name in [
        "qwen3_vl",
        "qwen2_5_vl",
        "qwen3_5",
        "smolvlm",
        "lfm2_vl",
        "gemma3",
        "gemma4",
    ] {
        check_encoder(name, &gpu, encoder_on(&gpu, name));
    }
}

#[test]
fn qwen3_vl_with_deepstack() {
    check("qwen3_vl");
}

#[test]
fn qwen3_5() {
    check("qwen3_5");
}

#[test]
fn qwen2_5_vl_with_windows() {
    check("qwen2_5_vl");
}

#[test]
fn smolvlm_and_idefics3() {
    check("smolvlm");
    check("idefics3");
}

#[test]
fn gemma3() {
    check("gemma3");
}

#[test]
fn gemma4() {
    check("gemma4");
    check("gemma4_std");
    check("gemma4_clip");
}

#[test]
fn lfm2_vl() {
    check("lfm2_vl");
}

/// mlx-vlm's converter moves the channels of patch convolutions to the end.
#[test]
fn patches_of_mlx_conversions() {
    for name in [
        "qwen3_vl",
        "qwen2_5_vl",
        "qwen3_5",
        "gemma3",
        "smolvlm",
        "idefics3",
    ] {
        let model = golden(&format!("vision/models/{name}"));
        let changed = ChangedCheckpoint::new(&model, &format!("mlx-{name}"), |tensor| {
            let [outputs, channels, ref window @ ..] = tensor.shape[..] else {
                return;
            };
            if window.len() < 2 {
                return;
            }
            let places: usize = window.iter().product();
            let from = |at: usize| {
                let (row, column) = (at / (channels * places), at % (channels * places));
                (row * channels + column % channels) * places + column / channels
            };
            tensor.values = (0..outputs * channels * places)
                .map(|at| tensor.values[from(at)])
                .collect();
            tensor.shape = [&[outputs], window, &[channels]].concat();
        });
        check_encoder(name, gpu(), encoder_of(gpu(), changed.path()));
    }
}

#[test]
fn mmproj_files() {
    for name in ["qwen3_vl", "qwen2_5_vl", "smolvlm", "gemma3", "lfm2_vl"] {
        check_encoder(name, gpu(), mmproj_encoder_on(gpu(), name));
    }
}

#[test]
fn processors_of_mmproj_files() {
    for name in ["qwen3_vl", "smolvlm", "gemma3", "qwen2_5_vl"] {
        let (_, files) = beside(name);
        let mut found =
            ImageProcessor::from_config(&files.config.image_processor.expect("settings"))
                .expect("a processor");
        let file = golden(&format!("vision/models/{name}/preprocessor_config.json"));
        let config = serde_json::from_slice(&std::fs::read(file).expect("a file")).expect("JSON");
        let own = ImageProcessor::from_config(&config).expect("a processor");
        // The tiny checkpoints have their own token budgets, which GGUF files cannot store.
        if let (
            ProcessorKind::Blocks { min, max, .. },
            ProcessorKind::Blocks {
                min: least,
                max: most,
                ..
            },
        ) = (&mut found.kind, &own.kind)
        {
            (*min, *max) = (*least, *most);
        }
        assert_eq!(found, own, "{name}");
    }
}

#[test]
fn an_unknown_projector_is_refused_by_name() {
    let folder = std::env::temp_dir().join(format!("jerboa-mmproj-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let from = golden("vision/gguf/gemma3");
    std::fs::copy(from.join("model.gguf"), folder.join("model.gguf")).expect("a copy");
    let mut encoder = std::fs::read(from.join("mmproj-model-bf16.gguf")).expect("a file");
    let at = encoder
        .windows(6)
        .rposition(|part| part == b"gemma3")
        .expect("its projector");
    encoder[at..at + 6].copy_from_slice(b"gemma9");
    std::fs::write(folder.join("mmproj-model-bf16.gguf"), encoder).expect("a file");
    let files = pollster::block_on(async {
        let source = open(&folder).await.expect("the folder");
        ModelFiles::open_unchecked(&source, None)
            .await
            .expect("text alone")
    });
    let error = jerboa::arch::vision_encoder(&files.config)
        .expect_err("another projector")
        .to_string();
    assert!(
        error.contains("the projector gemma9 of mmproj-model-bf16.gguf")
            && error.contains("idefics3"),
        "{error}"
    );
    std::fs::remove_dir_all(&folder).expect("removed");
}
