//! Devices with less memory than a model wants: it is allocated first, and the load goes on with a
//! smaller plan where the device refuses. What it held and refused is known to later loads.

use super::{exact, start, with_kv};
use jerboa::Error;
use jerboa::exec::{
    HEADROOM_BYTES, Model, ModelFiles, Precision, PrecisionOptions, RunOptions, Session,
};
use jerboa::gpu::{Backend, Gpu};
use jerboa::ir::WeightKind;
use jerboa::kernels::attention::Kv;
use jerboa_tests::golden::{self, greedy};
use jerboa_tests::{open, relative_l2};
use pollster::block_on;
use std::future::ready;
use std::rc::Rc;
use std::time::SystemTime;

fn options() -> RunOptions {
    RunOptions {
        prefill_chunk: 16,
        ..with_kv(Kv::F32)
    }
}

fn quantized(precision: Precision) -> RunOptions {
    let options = options();
    RunOptions {
        overrides: PrecisionOptions {
            precision,
            ..options.overrides
        },
        ..options
    }
}

/// Loads a model on a device.
fn load_on(gpu: &Rc<Gpu>, name: &str, options: RunOptions) -> Result<Session, Error> {
    block_on(async {
        let source = golden::open(&golden::golden(&format!("models/{name}"))).await?;
        let config = ModelFiles::config(&source).await?.expect("config.json");
        let files = ModelFiles::safetensors(&source, config).await?;
        let nothing = Box::pin(ready(Ok(())));
        let model = Model::load_concurrently(gpu.clone(), &source, files, options, nothing).await?;
        // The limit is that of the load.
        gpu.check().await?;
        gpu.simulate_memory_limit(None);
        Session::new(&model)
    })
}

/// Loads a model on a device with room for `bytes`.
fn load_within(name: &str, bytes: u64, options: RunOptions) -> (Rc<Gpu>, Result<Session, Error>) {
    let gpu = Rc::new(open(&exact()));
    gpu.simulate_memory_limit(Some(bytes));
    let result = load_on(&gpu, name, options);
    (gpu, result)
}

/// A device that has refused more than `bytes` before, and held `held`.
fn known_device(held: u64, bytes: Option<u64>) -> Rc<Gpu> {
    let gpu = Rc::new(open(&exact()));
    let mut measured = gpu.caps().measured.get();
    measured.add_held(held);
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("a clock");
    if let Some(bytes) = bytes {
        measured.add_refused(bytes, now.as_secs_f64() * 1000.0);
    }
    gpu.caps().measured.set(measured);
    gpu
}

/// Bytes of a loaded model without sessions, and of the weights alone.
fn sizes(name: &str, options: RunOptions) -> (u64, u64) {
    let (session, _) = start(name, &exact(), options);
    let bytes = session.gpu().resource_counts().bytes;
    (bytes, session.model().bytes().weights)
}

fn expert_bytes(session: &Session) -> u64 {
    let weights = session.model().weights().values();
    let experts = weights.filter(|w| matches!(w.kind, WeightKind::Experts { .. }));
    experts.map(|w| w.bytes()).sum()
}

#[test]
fn a_model_that_fits_is_loaded_as_it_is() {
    for name in ["mixtral", "qwen3"] {
        let (whole, golden) = start(name, &exact(), options());
        let needed = whole.gpu().resource_counts().bytes;
        let room = needed.max(whole.model().bytes().weights + whole.model().state_bytes(256))
            + HEADROOM_BYTES;
        let (gpu, session) = load_within(name, room, options());
        let mut session = session.expect(name);
        assert_eq!(gpu.take_refusal(), None, "{name}");
        let model = session.model().clone();
        assert!(
            !model.is_paged() && model.notes.is_empty(),
            "{name}: {:?}",
            model.notes
        );
        assert_eq!(model.precision, Precision::Auto, "{name}");
        assert_eq!(
            model.bytes().weights,
            whole.model().bytes().weights,
            "{name}"
        );
        assert_eq!(model.dispatches(), whole.model().dispatches(), "{name}");
        assert_eq!(
            greedy(&mut session, &golden.ids("input_ids"), 16),
            golden.ids("greedy")[..16],
            "{name}"
        );
        let measured = gpu.caps().measured.get();
        assert_eq!(measured.limit, None, "{name}");
        assert!(measured.held >= model.bytes().weights, "{measured:?}");
    }
}

/// The room ends among the weights, or behind them among the KV cache.
#[test]
fn experts_are_paged_where_the_device_refuses() {
    let (whole, golden) = start("mixtral", &exact(), quantized(Precision::F32));
    let (_, weights) = sizes("mixtral", quantized(Precision::F32));
    let ids = golden.ids("input_ids");
    for room in [weights + HEADROOM_BYTES / 2, weights - 1000] {
        let (gpu, session) = load_within("mixtral", room, quantized(Precision::F32));
        let mut session = session.unwrap_or_else(|e| panic!("{room}: {e}"));
        assert!(session.model().is_paged(), "{room}");
        assert!(expert_bytes(&session) < expert_bytes(&whole), "{room}");
        assert!(session.model().bytes().weights <= room, "{room}");
        let found = block_on(session.all_rows(&ids, false)).expect("logits");
        let error = relative_l2(&found, &golden.floats("logits"));
        assert!(error < 2e-4, "{room}: {error:e}");
        let limit = gpu.caps().measured.get().limit.expect("a refusal");
        assert!(limit <= room, "{limit} of {room}");
    }
}

#[test]
fn weights_are_quantized_where_the_device_refuses() {
    let (_, whole) = sizes("qwen3", options());
    let (gpu, session) = load_within("qwen3", whole - 1000, options());
    let mut session = session.expect("fewer bits");
    let model = session.model().clone();
    assert!(matches!(model.precision, Precision::Q8 | Precision::Q4));
    assert!(model.bytes().weights < whole);
    assert!(
        model
            .notes
            .iter()
            .any(|note| note.contains("are quantized to")),
        "{:?}",
        model.notes
    );
    assert!(block_on(gpu.check()).is_ok(), "reported once");
    let (_, golden) = start("qwen3", &exact(), options());
    assert_eq!(greedy(&mut session, &golden.ids("input_ids"), 8).len(), 8);
}

#[test]
fn a_model_that_cannot_shrink_is_refused_and_freed() {
    for must_fit in [false, true] {
        let options = RunOptions {
            must_fit,
            ..quantized(Precision::Q8)
        };
        let (gpu, result) = load_within("qwen3", 20_000, options);
        let error = result.err().expect("no room");
        assert_eq!(error.code(), "out_of_memory", "{error}");
        assert_eq!(gpu.resource_counts().bytes, 0, "something stays");
        assert!(block_on(gpu.check()).is_ok(), "reported once");
    }
}

/// The user's limit is not raised by what the device held, nor lowered by what it refused before.
#[test]
fn the_limit_of_the_user_holds() {
    let (_, weights) = sizes("mixtral", quantized(Precision::F32));
    let gpu = known_device(1 << 40, None);
    let limited = RunOptions {
        memory: Some(weights * 3 / 4 + HEADROOM_BYTES),
        ..quantized(Precision::F32)
    };
    let session = load_on(&gpu, "mixtral", limited).expect("paged");
    assert!(session.model().is_paged());
    let gpu = known_device(0, Some(weights / 2));
    let unlimited = RunOptions {
        memory: Some(1 << 30),
        ..options()
    };
    let session = load_on(&gpu, "mixtral", unlimited).expect("whole");
    assert!(!session.model().is_paged() && session.model().notes.is_empty());
    assert_eq!(gpu.caps().measured.get().limit, None, "disproved");
}

/// Without the user's limit, the load plans with what was refused before, at once.
#[test]
fn a_known_refusal_is_planned_with() {
    let (_, weights) = sizes("mixtral", quantized(Precision::F32));
    let gpu = known_device(0, Some(weights * 3 / 4 + HEADROOM_BYTES));
    let session = load_on(&gpu, "mixtral", quantized(Precision::F32)).expect("paged");
    assert!(session.model().is_paged());
    assert_eq!(gpu.take_refusal(), None);
}
