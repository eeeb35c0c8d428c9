//! Sessions saved as bytes: restored in another load of the model they give the same tokens, and
//! damaged or foreign bytes are refused.

use super::{exact, start, with_kv};
use futures_util::FutureExt;
use jerboa::exec::{Precision, PrecisionOptions, RunOptions, Session};
use jerboa::kernels::attention::Kv;
use jerboa::{Error, Result};
use jerboa_tests::golden::{go_on, greedy};
use pollster::block_on;
use std::cell::RefCell;
use std::rc::Rc;

pub(super) fn save(session: &Session) -> Result<Vec<u8>> {
    let saved = Rc::new(RefCell::new(Vec::new()));
    let into = saved.clone();
    let mut write = move |part: Vec<u8>| {
        into.borrow_mut().extend(part);
        async { Ok(()) }.boxed_local()
    };
    let bytes = block_on(session.save(&mut write))?;
    let saved = saved.take();
    assert_eq!(bytes, saved.len() as u64);
    Ok(saved)
}

pub(super) fn restore(session: &mut Session, saved: &[u8]) -> Result<()> {
    let saved: Rc<[u8]> = saved.into();
    let size = saved.len() as u64;
    let mut read = move |at: u64, length: u64| {
        let part = saved[at as usize..(at + length) as usize].to_vec();
        async { Ok(part) }.boxed_local()
    };
    block_on(session.load_saved(size, &mut read))
}

fn reason(error: &Error) -> String {
    assert_eq!(error.code(), "request", "{error}");
    error.to_string()
}

#[test]
fn a_restored_session_goes_on_with_the_same_tokens() {
    for (name, kv) in [
        ("qwen3", Kv::F32),
        ("qwen3", Kv::Int8),
        ("gemma3", Kv::F32),
        ("lfm2", Kv::F32),
        ("qwen3_5", Kv::F32),
        ("deepseek_v3", Kv::F32),
    ] {
        let (mut session, golden) = start(name, &exact(), with_kv(kv));
        let ids = golden.ids("input_ids");
        let whole = greedy(&mut session, &ids, 30);
        // After a prompt: logits are saved too.
        block_on(session.prefill(&ids, 0)).expect("prefill");
        let prompt = save(&session).expect("saved");
        let first = go_on(&mut session, 10);
        let answer = save(&session).expect("saved");
        // Another load, as after a reload of the page.
        let (mut other, _) = start(name, &exact(), with_kv(kv));
        restore(&mut other, &prompt).expect("restored");
        assert_eq!(other.tokens(), ids, "{name} {kv:?}");
        assert_eq!(go_on(&mut other, 30), whole, "{name} {kv:?}");
        restore(&mut other, &answer).expect("restored");
        assert_eq!(other.tokens(), session.tokens(), "{name} {kv:?}");
        let so_far = [&ids[..], &first].concat();
        block_on(other.prefill_rest(&so_far, &|| Ok(()))).expect("the last token");
        assert_eq!(go_on(&mut other, 20), whole[10..], "{name} {kv:?}");
    }
}

#[test]
fn damaged_and_foreign_sessions_are_refused() {
    let (mut session, golden) = start("qwen3", &exact(), with_kv(Kv::F32));
    let empty = save(&session).expect_err("an empty session");
    assert!(reason(&empty).contains("the session is empty"));
    let ids = golden.ids("input_ids");
    block_on(session.prefill(&ids, 0)).expect("prefill");
    let saved = save(&session).expect("saved");
    let mut refused = |bytes: &[u8]| {
        let error = restore(&mut session, bytes).expect_err("a refusal");
        assert!(session.tokens().is_empty());
        reason(&error)
    };
    assert!(refused(b"").contains("no saved session"));
    assert!(refused(&[0; 100]).contains("no saved session"));
    assert!(refused(&saved[..saved.len() - 1]).contains("no saved session"));
    assert!(refused(&saved[1..]).contains("damaged"));
    for at in (0..saved.len() - 12).step_by(saved.len() / 50) {
        let mut damaged = saved.clone();
        damaged[at] ^= 0x10;
        let reason = refused(&damaged);
        let known = ["damaged", "another model", "another version"];
        assert!(known.iter().any(|known| reason.contains(known)), "{reason}");
    }
    let text = String::from_utf8_lossy(&saved).replace("\"version\":1", "\"version\":7");
    let trailer = text.rfind("{\"version\"").map(|at| text.len() - at);
    let mut newer = saved.clone();
    let at = newer.len() - trailer.expect("a trailer");
    let digit = at + "{\"version\":".len();
    newer[digit] = b'7';
    assert!(refused(&newer).contains("another version"), "format 7");
    // Other weights, another precision, another type of the cache.
    let quantized = RunOptions {
        overrides: PrecisionOptions {
            kv_type: Some(Kv::F32),
            precision: Precision::Q8,
            ..PrecisionOptions::default()
        },
        ..with_kv(Kv::F32)
    };
    for (name, options) in [
        ("qwen3_f16", with_kv(Kv::F32)),
        ("qwen2", with_kv(Kv::F32)),
        ("qwen3", with_kv(Kv::Int8)),
        ("qwen3", quantized),
    ] {
        let (mut other, _) = start(name, &exact(), options);
        let error = restore(&mut other, &saved).expect_err("a refusal");
        assert!(reason(&error).contains("another model"), "{name}");
    }
    // A shorter context.
    let short = RunOptions {
        max_context: Some(ids.len() - 1),
        ..with_kv(Kv::F32)
    };
    let (mut other, _) = start("qwen3", &exact(), short);
    let error = restore(&mut other, &saved).expect_err("a refusal");
    assert!(matches!(error, Error::SequenceTooLong { .. }), "{error}");
    // The session is usable afterwards.
    restore(&mut session, &saved).expect("restored");
    assert_eq!(go_on(&mut session, 8), golden.ids("greedy")[..8]);
}
