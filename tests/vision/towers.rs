//! Towers against transformers: tiny random checkpoints of tests/golden/vision/models.

use half::f16;
use jerboa::exec::{Eye, Files, RunOptions};
use jerboa::gpu::Gpu;
use jerboa::vision::{Picture, Processor};
use jerboa_tests::golden::{Golden, golden, open};
use jerboa_tests::{gpu, relative_l2};
use serde_json::{Value, json};

/// The processor of a folder; those of LFM2-VL and Gemma 4 are written here, so that the pictures keep their size. The
/// reference had its pixels rounded to 16 bits.
pub fn processor(name: &str) -> Processor {
    let file = golden(&format!("vision/models/{name}/preprocessor_config.json"));
    let config: Value = match std::fs::read(file) {
        Ok(bytes) => serde_json::from_slice(&bytes).expect("JSON"),
        Err(_) if name == "gemma4" => {
            json!({ "image_processor_type": "Gemma4ImageProcessor", "pooling_kernel_size": 2, "max_soft_tokens": 6 })
        }
        Err(_) => {
            json!({ "image_processor_type": "Lfm2VlImageProcessor", "encoder_patch_size": 16, "min_image_tokens": 1 })
        }
    };
    let mut processor = Processor::from_config(&config).expect("a processor");
    let round = |v: &mut f32| *v = f16::from_f32(*v).to_f32();
    processor.levels.iter_mut().flatten().for_each(round);
    processor
}

/// The pictures of a golden file.
pub fn pictures(golden: &Golden) -> Vec<Picture> {
    let picture = |name: &str| {
        let shape = golden.shape(name);
        Picture::new(shape[1], shape[0], golden.bytes(name)).expect("a picture")
    };
    ["image.0", "image.1"].map(picture).into()
}

/// The tiles of a picture; Gemma 4's are as large as the reference's were.
pub fn tiles(name: &str, processor: &Processor, picture: &Picture) -> Vec<Picture> {
    if name == "gemma4" { vec![picture.clone()] } else { processor.tiles(picture).expect("tiles") }
}

/// Loads a folder's tower.
pub fn eye(name: &str) -> Eye {
    eye_on(gpu(), name)
}

/// The same on a device.
pub fn eye_on(gpu: &Gpu, name: &str) -> Eye {
    pollster::block_on(async {
        let source = open(&golden(&format!("vision/models/{name}"))).await.expect("the folder");
        let config = serde_json::from_slice(&source.read("config.json").await.expect("config.json")).expect("JSON");
        let files = Files::safetensors(&source, config).await.expect("files");
        Eye::load(gpu, &source, files, RunOptions::default()).await.expect("a tower")
    })
}

fn check(name: &str) {
    let expected = Golden::read(&golden(&format!("vision/models/{name}/golden.safetensors")));
    let (processor, mut eye) = (processor(name), eye(name));
    let cols = eye.cols();
    let mut found: Vec<Vec<f32>> = vec![Vec::new(); eye.tower.features];
    for picture in pictures(&expected) {
        let tiles = tiles(name, &processor, &picture);
        let rows = pollster::block_on(async {
            let encoded = eye.encode(gpu(), &tiles, &processor).await.expect("rows");
            encoded.read(gpu()).await.expect("numbers")
        });
        for row in rows.chunks(cols * found.len()) {
            row.chunks(cols).zip(&mut found).for_each(|(part, all)| all.extend(part));
        }
    }
    let names = ["visual_tokens", "deepstack.0", "deepstack.1"];
    for (name_of, found) in names.iter().zip(found) {
        let error = relative_l2(&found, &expected.floats(name_of));
        assert!(error < 1e-4, "{name} {name_of}: {error:e}");
    }
    assert_eq!(eye.encodes, 2);
}

#[test]
fn qwen3_vl_with_deeper_features() {
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
}

#[test]
fn lfm2_vl() {
    check("lfm2_vl");
}
