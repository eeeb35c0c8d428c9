//! Prompts of text, image, text, image, text against transformers: logits, greedy tokens, cached
//! prefixes.

use super::encoders::{encoder_on, images, mmproj_encoder_on, processor, tiles};
use jerboa::exec::{
    DecodeBatch, DecodeLoop, DecodeParams, ModelFiles, PrecisionOptions, PromptLookup, RunOptions,
    SequenceParams, Session, VisionEncoder, content_hash,
};
use jerboa::kernels::attention::Kv;
use jerboa_tests::golden::{Golden, go_on, golden, greedy, load, open as open_folder};
use jerboa_tests::{limit, open, relative_l2};
use std::collections::BTreeMap;

const IMAGE: i32 = 300;

fn options(chunk: usize) -> RunOptions {
    let overrides = PrecisionOptions {
        kv_type: Some(Kv::F32),
        ..PrecisionOptions::default()
    };
    RunOptions {
        overrides,
        prefill_chunk: chunk,
        max_context: Some(192),
        short_prefill: Some(true),
        ..RunOptions::default()
    }
}

fn session(name: &str, chunk: usize) -> Session {
    load(
        open(&Default::default()),
        &golden(&format!("vision/models/{name}")),
        options(chunk),
    )
    .expect(name)
}

/// Encodes an image unless the session's album has it; returns the number of its first token.
fn encode_into_cache(
    session: &Session,
    vision: &mut VisionEncoder,
    name: &str,
    image: &jerboa::vision::RgbImage,
) -> (u32, usize) {
    let processor = processor(name);
    let tiles = tiles(name, &processor, image);
    let content = content_hash(&tiles, &[]);
    let found = session.soft_token_cache().borrow_mut().find(content);
    let first = found.unwrap_or_else(|| {
        let encoded =
            pollster::block_on(vision.encode(session.gpu(), &tiles, 1, &processor)).expect("rows");
        session
            .soft_token_cache()
            .borrow_mut()
            .add(content, encoded)
    });
    (first, session.soft_token_cache().borrow().tokens(first))
}

fn check(name: &str, chunk: usize) {
    let session = session(name, chunk);
    let vision = encoder_on(session.gpu(), name);
    check_on(name, session, vision);
}

fn check_on(name: &str, mut session: Session, mut vision: VisionEncoder) {
    let expected = Golden::read(&golden(&format!("vision/models/{name}/golden.safetensors")));
    session.model().prepare_short().expect("a plan");
    let vocab = session.vocab() as u32;
    let mut numbers = Vec::new();
    for image in images(&expected) {
        let (first, tokens) = encode_into_cache(&session, &mut vision, name, &image);
        numbers.extend((0..tokens as u32).map(|i| vocab + first + i));
    }
    let mut numbers = numbers.into_iter();

    let ids: Vec<u32> = expected
        .ints("input_ids")
        .iter()
        .map(|id: &i32| {
            if *id == IMAGE {
                numbers.next().expect("an image's token")
            } else {
                *id as u32
            }
        })
        .collect();
    assert_eq!(numbers.next(), None, "{name}: more rows than positions");
    let logits = pollster::block_on(session.all_rows(&ids, false)).expect("logits");
    let error = relative_l2(&logits, &expected.floats("logits"));
    assert!(error < limit(session.gpu(), 3e-4), "{name}: {error:e}");
    let wanted: Vec<u32> = expected
        .ints("greedy")
        .iter()
        .map(|id| *id as u32)
        .collect();
    pollster::block_on(session.prefill(&ids, 0)).expect("the prompt");
    session.checkpoint().expect("a checkpoint");
    assert_eq!(go_on(&mut session, 16), wanted, "{name}");
    // In a batch with the text of another sequence, at the positions that follow the images.
    in_a_batch(&session, (&ids, &wanted), name);
    // A second question on the same images: no image is encoded again and only the new part runs.
    for image in images(&expected) {
        encode_into_cache(&session, &mut vision, name, &image);
    }
    let more = [&ids[..], &[7, 8, 9]].concat();
    let held =
        pollster::block_on(session.prefill_reusing_prefix(&more, &|| Ok(()))).expect("a follow-up");
    assert_eq!((vision.images_encoded, held), (2, ids.len()), "{name}");
    let kept = pollster::block_on(session.logits()).expect("logits");
    // The same in a fork, and from the start.
    let mut fork = session.fork().expect("a fork");
    // Recurrent states return to their checkpoint.
    let back = if fork.model().is_recurrent() {
        ids.len()
    } else {
        more.len() - 1
    };
    assert_eq!(
        pollster::block_on(fork.prefill_reusing_prefix(&more, &|| Ok(()))).expect("the fork"),
        back,
        "{name}"
    );
    let mut other = Session::new(session.model()).expect("a session");
    other.set_soft_token_cache(session.soft_token_cache().clone());
    pollster::block_on(other.prefill_reusing_prefix(&more, &|| Ok(()))).expect("the whole");
    for found in [fork, other] {
        let error = relative_l2(&pollster::block_on(found.logits()).expect("logits"), &kept);
        assert!(error < limit(session.gpu(), 1e-5), "{name}: {error:e}");
    }
    // Plain text then, at the positions of plain text.
    let text = [5, 6, 7, 8, 9, 10];
    pollster::block_on(session.prefill_reusing_prefix(&text, &|| Ok(()))).expect("text");
    let after = pollster::block_on(session.logits()).expect("logits");
    let mut fresh = Session::new(session.model()).expect("a session");
    pollster::block_on(fresh.prefill_reusing_prefix(&text, &|| Ok(()))).expect("text");
    assert_eq!(
        pollster::block_on(fresh.logits()).expect("logits"),
        after,
        "{name}"
    );
}

/// Decodes a prompt with images next to one of plain text.
fn in_a_batch(session: &Session, (ids, wanted): (&[u32], &[u32]), name: &str) {
    pollster::block_on(async {
        let text = [5, 6, 7, 8, 9, 10];
        let mut sessions = Vec::new();
        for prompt in [ids, &text] {
            let mut other = Session::new(session.model())?;
            other.set_soft_token_cache(session.soft_token_cache().clone());
            other.prefill(prompt, 0).await?;
            sessions.push(other);
        }
        let mut batch = DecodeBatch::new(session.model(), 2).await?;
        let mut found = BTreeMap::new();
        for session in &sessions {
            let id = batch.join(session, SequenceParams::greedy(16)).await?;
            found.insert(id, Vec::new());
        }
        loop {
            let next = batch.next().await?;
            if next.is_empty() {
                break;
            }
            for (id, tokens) in next {
                found.entry(id).or_default().extend(tokens);
            }
        }
        let found: Vec<Vec<u32>> = found.into_values().collect();
        let alone = go_on(&mut sessions[1], 16);
        assert_eq!((&found[0][..], &found[1]), (wanted, &alone), "{name}");
        Ok::<_, jerboa::Error>(())
    })
    .unwrap_or_else(|error| panic!("{name}: {error}"));
}

#[test]
fn qwen3_vl_with_deepstack_and_interleaved_positions() {
    // Images span several chunks of the prompt.
    check("qwen3_vl", 7);
}

#[test]
fn qwen2_5_vl_with_consecutive_positions() {
    check("qwen2_5_vl", 512);
}

#[test]
fn qwen3_5_with_recurrent_layers() {
    check("qwen3_5", 7);
}

#[test]
fn lfm2_vl_with_convolutions() {
    // The whole prompt fits into one short chunk.
    check("lfm2_vl", 512);
}

#[test]
fn gemma_attention_within_images_is_bidirectional() {
    // Nine tokens per image, never split, with rings of eighteen positions; and in one chunk.
    check("gemma3", 11);
    check("gemma3", 512);
    check("gemma4", 9);
}

#[test]
fn an_image_longer_than_a_chunk_is_refused() {
    let mut session = session("gemma3", 8);
    let mut vision = encoder_on(session.gpu(), "gemma3");
    let expected = Golden::read(&golden("vision/models/gemma3/golden.safetensors"));
    let (first, tokens) = encode_into_cache(&session, &mut vision, "gemma3", &images(&expected)[0]);
    let ids: Vec<u32> = (0..tokens as u32)
        .map(|i| session.vocab() as u32 + first + i)
        .collect();
    let error = pollster::block_on(session.prefill(&[&[1], &ids[..]].concat(), 0))
        .expect_err("eight rows a part");
    assert!(
        error.to_string().contains("an image of 9 tokens"),
        "{error}"
    );
}

#[test]
fn drafts_never_contain_image_tokens() {
    let mut session = session("qwen3_vl", 512);
    let mut vision = encoder_on(session.gpu(), "qwen3_vl");
    let expected = Golden::read(&golden("vision/models/qwen3_vl/golden.safetensors"));
    let (first, tokens) =
        encode_into_cache(&session, &mut vision, "qwen3_vl", &images(&expected)[0]);
    let vocab = session.vocab() as u32;
    let image: Vec<u32> = (0..tokens as u32).map(|i| vocab + first + i).collect();
    // The last tokens preceded the image in the earlier prompt as well.
    let ids = [&[1, 5, 6], &image[..], &[8, 5, 6]].concat();
    let plain = greedy(&mut session, &ids, 12);
    let guessed = pollster::block_on(async {
        session.prepare_speculation().await?;
        session.prefill(&ids, 0).await?;
        let lookup = Some(PromptLookup {
            context: &ids,
            prediction: &[],
            draft_always: true,
        });
        let mut decode = DecodeLoop::start(
            &mut session,
            DecodeParams {
                lookup,
                ..DecodeParams::greedy(ids.len(), 12)
            },
        )?;
        let mut tokens = Vec::new();
        loop {
            let next = decode.next(&mut session).await?;
            if next.is_empty() {
                return decode.finish(&mut session).await.map(|()| tokens);
            }
            tokens.extend(next);
        }
    });
    assert_eq!(guessed.expect("tokens"), plain);
}

#[test]
fn smolvlm_and_idefics3_with_tiles() {
    check("smolvlm", 512);
    check("idefics3", 512);
}

#[test]
fn gguf_model_with_mmproj() {
    let session = pollster::block_on(async {
        let source = open_folder(&golden("vision/gguf/qwen3_vl"))
            .await
            .expect("the folder");
        let files = ModelFiles::open(&source, None).await.expect("files");
        Session::load_files(open(&Default::default()), &source, files, options(512))
            .await
            .expect("a model")
    });
    let vision = mmproj_encoder_on(session.gpu(), "qwen3_vl");
    check_on("qwen3_vl", session, vision);
}
