//! Joint embedding models of images and texts against transformers: tests/golden/vision/pairs.

use super::encoders::images;
use super::{expectations, numbers};
use jerboa::exec::RunOptions;
use jerboa::hub::AbortFlag;
use jerboa::task::{EmbedRequest, Embedder, ServesTask, Task, TaskModel};
use jerboa::vision::{ImageProcessor, ProcessorKind};
use jerboa_tests::golden::{Golden, golden, open as open_folder};
use jerboa_tests::{gpu, limit, open, relative_l2};
use serde_json::json;
use std::path::Path;
use std::rc::Rc;

fn embedder(name: &str, folder: &Path) -> Box<Embedder> {
    pollster::block_on(async {
        let source = Rc::new(open_folder(folder).await.expect("the folder"));
        let gpu = open(&Default::default());
        let model = TaskModel::load(gpu, &source, name, None, RunOptions::default())
            .await
            .expect("a model");
        assert_eq!(model.task(), Task::Embed);
        let TaskModel::Embed(mut model) = model else {
            panic!("{name} embeds")
        };
        model
            .enable_vision(source, RunOptions::default())
            .await
            .expect("its processor");
        model
    })
}

fn check(name: &str) {
    check_folder(name, &golden(&format!("vision/pairs/{name}")));
}

fn check_folder(name: &str, folder: &Path) {
    let expected = Golden::read(&folder.join("golden.safetensors"));
    let strings: Vec<String> =
        serde_json::from_slice(&std::fs::read(folder.join("texts.json")).expect("texts"))
            .expect("JSON");
    let mut model = embedder(name, folder);
    let request = EmbedRequest::default();
    let found = pollster::block_on(model.embed(&strings, &request, &AbortFlag::new(), |_, _| {}))
        .expect("vectors");
    let error = relative_l2(&found.concat(), &expected.floats("texts"));
    assert!(error < limit(gpu(), 1e-4), "{name}, texts: {error:e}");
    let sight = model.vision.clone().expect("a vision encoder");
    let mut found = Vec::new();
    let mut numbers = Vec::new();
    for image in images(&expected) {
        pollster::block_on(async {
            let seen = sight
                .encode(sight.image_from_pixels(&image).expect("tiles"), &[])
                .await
                .expect("an image");
            assert_eq!(seen.tokens, 1);
            found.extend(
                model
                    .image_embedding(seen.id, &request)
                    .await
                    .expect("a vector"),
            );
            numbers.push(seen.id);
        });
    }
    let error = relative_l2(&found, &expected.floats("pictures"));
    assert!(error < limit(gpu(), 1e-4), "{name}, images: {error:e}");
    // Truncated, then normalized again; and an image number that does not exist.
    let short = EmbedRequest {
        truncate_dim: Some(8),
        ..EmbedRequest::default()
    };
    let vector = pollster::block_on(model.image_embedding(numbers[0], &short)).expect("a vector");
    assert!(vector.len() == 8 && (vector.iter().map(|v| v * v).sum::<f32>() - 1.0).abs() < 1e-5);
    assert!(pollster::block_on(model.image_embedding(999, &request)).is_err());
    assert_eq!(
        model.info()["capabilities"],
        serde_json::json!(["text", "image"])
    );
}

#[test]
fn clip_with_a_class_token() {
    check("clip");
}

/// openai/clip-vit-base-patch32 names CLIP's image processor as transformers 4.24 did, with single
/// numbers for sizes.
#[test]
fn clip_with_settings_of_a_feature_extractor() {
    let from = golden("vision/pairs/clip");
    let folder = std::env::temp_dir().join(format!("jerboa-{}-old-clip", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    for file in std::fs::read_dir(&from).expect("files") {
        let file = file.expect("a file");
        std::fs::copy(file.path(), folder.join(file.file_name())).expect("a copy");
    }
    let settings = json!({
        "crop_size": 40, "do_center_crop": true, "do_normalize": true, "do_resize": true,
        "feature_extractor_type": "CLIPFeatureExtractor", "resample": 3, "size": 40,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    });
    let file = folder.join("preprocessor_config.json");
    std::fs::write(file, settings.to_string()).expect("settings");
    check_folder("clip", &folder);
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[test]
fn clip_with_a_height_and_a_width_is_not_cropped() {
    let processor = |crop: usize| {
        ImageProcessor::from_config(&json!({
            "image_processor_type": "CLIPImageProcessor",
            "size": { "height": 40, "width": 40 }, "crop_size": { "height": crop, "width": crop },
        }))
    };
    let layout = processor(40)
        .and_then(|own| own.layout(80, 60))
        .expect("a layout");
    assert_eq!(layout.tile_sizes().collect::<Vec<_>>(), [(40, 40)]);
    assert!(matches!(
        processor(40).expect("a processor").kind,
        ProcessorKind::Fixed {
            width: 40,
            height: 40,
            scan: None
        }
    ));
    let refused = processor(32).expect_err("a crop").to_string();
    assert!(
        refused.contains("size 40x40 with crop_size 32x32"),
        "{refused}"
    );
}

#[test]
fn siglip2_with_any_number_of_patches() {
    check("siglip2");
    let sizes = expectations("pairs/siglip2/sizes.json");
    for case in sizes.as_array().expect("a list") {
        let [patch, most, height, width, rows, cols] = numbers(case)[..] else {
            panic!("{case}")
        };
        let config = json!({ "image_processor_type": "Siglip2ImageProcessor", "patch_size": patch, "max_num_patches": most });
        let layout = ImageProcessor::from_config(&config)
            .expect("a processor")
            .layout(width, height)
            .expect("a size");
        assert_eq!(
            layout.tile_sizes().collect::<Vec<_>>(),
            [(rows, cols)],
            "{case}"
        );
    }
}

#[test]
fn siglip_with_a_learned_query_and_padded_text() {
    check("siglip");
}
