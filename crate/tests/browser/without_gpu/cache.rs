//! Downloads through `fetch` into the browser's store: reloads, and downloads that were cut.

use crate::server::{allow, forget, open, reopen, sent};
use jerboa::hub::{CacheStore, Source, cached_models, delete_cached};
use wasm_bindgen_test::wasm_bindgen_test;

const CONFIG: &[u8] = include_bytes!("../../../../www/public/models/stories260K/config.json");
const WEIGHTS: &[u8] =
    include_bytes!("../../../../www/public/models/stories260K/model.safetensors");
const FILES: [(&str, &[u8]); 2] = [("config.json", CONFIG), ("model.safetensors", WEIGHTS)];

/// Reads the weights from the server or the store, and waits until they are stored.
async fn weights(source: &Source) -> jerboa::Result<Vec<u8>> {
    let mut bytes = vec![0; WEIGHTS.len()];
    let range = 0..WEIGHTS.len() as u64;
    source
        .stream("model.safetensors", range, async |at, chunk| {
            let at = at as usize;
            bytes[at..at + chunk.len()].copy_from_slice(&chunk.to_vec());
            Ok(())
        })
        .await?;
    source.flush().await;
    Ok(bytes)
}

#[wasm_bindgen_test]
async fn a_second_visit_downloads_nothing_and_a_deleted_model_all() {
    allow(f64::INFINITY);
    for visit in 0..3 {
        let source = open("again", &FILES, true).await;
        forget();
        assert_eq!(source.read("config.json").await.expect("a file"), CONFIG);
        assert!(
            weights(&source).await.expect("weights") == WEIGHTS,
            "visit {visit}"
        );
        let downloaded = sent("again/model.safetensors");
        let expected = if visit == 1 { 0 } else { WEIGHTS.len() };
        assert_eq!(downloaded, expected as f64, "visit {visit}");
        if visit == 1 {
            let own = |name: &str| name.ends_with("/again");
            let store = CacheStore::open().await.expect("a store");
            let all = cached_models(&store).await.expect("a list");
            let model = all.iter().find(|model| own(&model.source)).expect("listed");
            delete_cached(&store, &model.source)
                .await
                .expect("a deletion");
        }
    }
}

#[wasm_bindgen_test]
async fn a_cut_download_continues_where_it_ended() {
    let source = open("cut", &FILES, true).await;
    source.read("config.json").await.expect("a file");
    forget();
    // Far more than the parts that are under way at once, whose bytes are lost.
    allow(800_000.0);
    weights(&source)
        .await
        .expect_err("a connection that is cut");
    source.flush().await;
    let before = sent("cut/model.safetensors");
    assert!((700_000.0..=800_000.0).contains(&before), "{before}");
    allow(f64::INFINITY);
    forget();
    let source = reopen("cut", true).await.expect("a source");
    assert!(weights(&source).await.expect("weights") == WEIGHTS);
    let rest = sent("cut/model.safetensors");
    // Whole parts of 64 KiB are stored.
    assert!(
        rest <= WEIGHTS.len() as f64 - 400_000.0,
        "{rest} of {}",
        WEIGHTS.len()
    );
}
