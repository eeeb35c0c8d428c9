//! Images in conversations: placeholders, cached prefixes with images, regenerated answers, forked
//! conversations, and refused requests.

use super::{golden, open};
use jerboa::exec::{PrecisionOptions, RunOptions};
use jerboa::gpu::DeviceOptions;
use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use jerboa::kernels::attention::Kv;
use jerboa::task::{ChatModel, GenerateRequest, GenerationResult, ImageInfo, ServesTask};
use jerboa::vision::RgbImage;
use jerboa_tests::golden::Golden;
use jerboa_tests::random;
use pollster::block_on;
use serde_json::{Value, json};
use std::rc::Rc;

/// The page's random model, in f32.
fn tiny(context: usize) -> ChatModel {
    let overrides = PrecisionOptions {
        kv_type: Some(Kv::F32),
        ..PrecisionOptions::default()
    };
    let options = RunOptions {
        max_context: Some(context),
        overrides,
        ..RunOptions::default()
    };
    let gpu = open(&DeviceOptions {
        f16: false,
        ..DeviceOptions::default()
    });
    block_on(async {
        let folder = golden("../../www/public/models/tiny-vision");
        let model = ModelRef::parse(&folder.to_string_lossy())?;
        let source = Source::open(
            &model,
            &HubOptions::default(),
            AbortFlag::new(),
            Progress::silent(),
        )
        .await?;
        let mut loaded = ChatModel::load(gpu, &source, "tiny-vision", options).await?;
        loaded.enable_vision(Rc::new(source), None, options).await?;
        Ok::<_, jerboa::Error>(loaded)
    })
    .unwrap_or_else(|e| panic!("{e}"))
}

fn image(seed: u64, width: usize, height: usize) -> RgbImage {
    let bytes = random(seed, width * height * 3)
        .iter()
        .map(|v| ((v + 1.0) * 127.0) as u8)
        .collect();
    RgbImage::new(width, height, bytes).expect("an image")
}

fn see(loaded: &ChatModel, image: &RgbImage) -> ImageInfo {
    let sight = loaded.vision().expect("eyes");
    block_on(sight.encode(sight.image_from_pixels(image).expect("tiles"), &[]))
        .unwrap_or_else(|e| panic!("{e}"))
}

fn ask(loaded: &mut ChatModel, messages: &Value) -> jerboa::Result<GenerationResult> {
    let request = json!({ "messages": messages, "temperature": 0, "maxTokens": 6 });
    block_on(loaded.generate(
        &GenerateRequest::from_json(&request.to_string())?,
        &AbortFlag::new(),
        |_| {},
    ))
}

fn user(image: u32, text: &str) -> Value {
    json!({ "role": "user", "content": [{ "type": "image", "imageId": image }, { "type": "text", "text": text }] })
}

#[test]
fn a_conversation_keeps_its_images() {
    let mut loaded = tiny(512);
    assert_eq!(
        loaded.info()["capabilities"],
        json!(["text", "image", "video"])
    );
    let one = image(1, 96, 64);
    let other = image(2, 70, 130);

    let first = see(&loaded, &one);
    assert_eq!(
        (first.tokens, &first.grids[..], &first.tiles[..]),
        (6, &[(2, 3)][..], &[(96, 64)][..])
    );
    assert!(loaded.vision().unwrap().encoder_bytes() > 0);
    let start = ask(&mut loaded, &json!([user(first.id, "What is it?")])).expect("an answer");
    assert!(
        start.text.starts_with(' ') && start.encode_ms > 0.0,
        "{start:?}"
    );
    // A follow-up with a second image: the first is not encoded again, and only the new part of the
    // prompt runs.
    let again = see(&loaded, &one);
    let second = see(&loaded, &other);
    assert_eq!((again.id, again.ms), (first.id, 0.0));
    let sight = loaded.vision().unwrap().clone();
    assert_eq!(sight.encode_count(), 2);
    let messages = json!([
        user(first.id, "What is it?"), { "role": "assistant", "content": start.text }, user(second.id, "And this?"),
    ]);
    let follow = ask(&mut loaded, &messages).expect("an answer");
    // The answer's tokens become other tokens when they return as text: only the common prefix is
    // reused.
    assert!(
        follow.cached_tokens >= start.prompt_tokens,
        "{} of {}",
        follow.cached_tokens,
        start.prompt_tokens
    );
    // The same from an empty cache, in another session of the model and in a fork.
    let mut fresh = loaded.create_session().expect("a session");
    let mut fork = loaded.fork().expect("a fork");
    for session in [&mut fresh, &mut fork, &mut loaded] {
        assert_eq!(ask(session, &messages).expect("an answer").ids, follow.ids);
    }
    assert_eq!(sight.encode_count(), 2);
    let made_again = ask(&mut loaded, &messages).expect("an answer");
    assert_eq!(made_again.cached_tokens + 1, made_again.prompt_tokens);
    // Unloading the encoder preserves the cached images; a new image loads the encoder again.
    block_on(sight.unload_encoder());
    assert_eq!(sight.encoder_bytes(), 0);
    assert_eq!(
        ask(&mut loaded, &messages).expect("an answer").ids,
        follow.ids
    );
    see(&loaded, &image(3, 64, 64));
    assert_eq!(sight.encode_count(), 3);
    assert_eq!(
        block_on(sight.embeddings(first.id)).expect("rows").len(),
        6 * 32
    );
}

#[test]
fn a_video_is_read_with_the_times_of_its_frames() {
    let expected = Golden::read(&golden("vision/video/tiny.safetensors"));
    let shape = expected.shape("frames");
    let frames = expected.bytes("frames");

    let mut loaded = tiny(512);
    let sight = loaded.vision().expect("eyes").clone();
    let take = || {
        let mut intake = sight
            .video_intake(shape[2], shape[1], shape[0])
            .expect("sizes");
        intake.push(&frames, 3).expect("rows");
        intake
    };
    let seconds = [0.0, 0.5, 1.0, 1.5, 2.0];
    let seen = block_on(sight.encode(take(), &seconds)).expect("a video");
    assert_eq!((seen.tokens, &seen.grids[..]), (12, &[(2, 3), (2, 3)][..]));
    let said = |n: u32| {
        json!([{ "role": "user", "content": [{ "type": "text", "text": "Look " }, { "type": "video", "imageId": n },
            { "type": "text", "text": " at it" }] }])
    };
    let request = json!({ "messages": said(seen.id), "temperature": 0, "maxTokens": 16 });
    let request = GenerateRequest::from_json(&request.to_string()).expect("a request");
    let answer = block_on(loaded.generate(&request, &AbortFlag::new(), |_| {})).expect("an answer");
    assert_eq!(answer.prompt_tokens, expected.ints("input_ids").len());
    let wanted: Vec<u32> = expected
        .ints("greedy")
        .iter()
        .map(|id| *id as u32)
        .collect();
    assert_eq!(answer.ids, wanted);
    // The same frames at other times are another video; at the same times the video is cached.
    let again = block_on(sight.encode(take(), &seconds)).expect("a video");
    let slow = block_on(sight.encode(take(), &[0.0, 2.0, 4.0, 6.0, 8.0])).expect("a video");
    assert!(again.id == seen.id && slow.id != seen.id);
    // An image in the same message is supported.
    let still = see(&loaded, &image(4, 64, 64));
    let mut both = said(seen.id);
    both[0]["content"]
        .as_array_mut()
        .unwrap()
        .push(json!({ "type": "image", "imageId": still.id }));
    let mixed = ask(&mut loaded, &both).expect("an answer");
    assert!(
        mixed.prompt_tokens > answer.prompt_tokens && mixed.cached_tokens > seen.tokens,
        "{mixed:?}"
    );
    for wrong in [&seconds[..4], &[0.0, 3.0, 1.0, 4.0, 5.0]] {
        let error = block_on(sight.encode(take(), wrong))
            .expect_err("other times")
            .to_string();
        assert!(
            error.contains("4 frames need increasing times in seconds"),
            "{error}"
        );
    }
    assert!(sight.video_intake(64, 64, 2000).is_err());
    let times = sight.video_processor().expect("videos").times(30.0, None);
    assert_eq!(
        (times[0], times.len(), times[times.len() - 1]),
        (0.0, 33, 30.0)
    );
}

#[test]
fn user_text_never_becomes_an_image() {
    let mut loaded = tiny(256);
    let first = see(&loaded, &image(1, 64, 64));
    let typed = ask(
        &mut loaded,
        &json!([user(first.id, "<|image_pad|> and <|vision_start|>")]),
    );
    assert!(typed.is_ok(), "{typed:?}");
    for (messages, said) in [
        (json!([user(90_000, "?")]), "unknown image id 90000"),
        (
            json!([{ "role": "user", "content": [{ "type": "photo", "imageId": first.id }] }]),
            "0 placeholders <|image_pad|> for 1 images",
        ),
    ] {
        let error = ask(&mut loaded, &messages)
            .expect_err("refused")
            .to_string();
        assert!(error.contains(said), "{error}");
    }
    let sight = loaded.vision().unwrap();
    let error = block_on(sight.encode(sight.image_intake(64, 64).expect("sizes"), &[]))
        .expect_err("no rows")
        .to_string();
    assert!(error.contains("only 0 of its 64 rows are given"), "{error}");
    assert!(sight.image_intake(2000, 3).is_err(), "too long");
}

#[test]
fn large_images_shrink_to_fit_the_context() {
    let loaded = tiny(64);
    let seen = see(&loaded, &image(5, 400, 300));
    assert!(seen.tokens <= 32, "{seen:?}");
}
