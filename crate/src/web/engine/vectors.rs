//! Embeddings and reranking.

use super::Engine;
use super::wrong_task;
use crate::task::{EmbedRequest, RerankRequest, Task, TaskModel};
use crate::web::JsResult;
use crate::web::arguments::{embed_inputs, string_list};
use crate::web::options::abort_flag;
use crate::web::values::{from_js, to_plain_js};
use js_sys::{Array, Float32Array, Function};
use serde_json::json;
use wasm_bindgen::prelude::*;

#[wasm_bindgen]
impl Engine {
    /// Embeds texts and lists of token ids; `on_progress` receives `{ done, total }`.
    pub async fn embed(
        &self,
        texts: JsValue,
        options: JsValue,
        on_progress: Function,
    ) -> JsResult<Array> {
        let embed = async {
            let abort = abort_flag(&options);
            let request: EmbedRequest = from_js("embed", options)?;
            let inputs = embed_inputs(&texts)?;
            let mut taken = self.acquire_model(Task::Embed)?;
            let Some(TaskModel::Embed(model)) = &mut taken.model else {
                return Err(wrong_task());
            };

            model
                .embed_inputs(&inputs, &request, &abort, |done: usize, total: usize| {
                    let _ = on_progress.call1(
                        &JsValue::NULL,
                        &to_plain_js(&json!({ "done": done, "total": total })),
                    );
                })
                .await
        };
        let vectors = embed.await.map_err(|e| self.model_error(&e))?;
        Ok(vectors
            .iter()
            .map(|vector| Float32Array::from(&vector[..]))
            .collect())
    }

    /// The embedding of an encoded image.
    #[wasm_bindgen(js_name = embedImage)]
    pub async fn embed_image(&self, image_id: u32, options: JsValue) -> JsResult<Float32Array> {
        let vector = async {
            let request: EmbedRequest = from_js("embed", options)?;
            let taken = self.acquire_model(Task::Embed)?;
            let model = taken.embedder()?;
            model.image_embedding(image_id, &request).await
        };
        vector
            .await
            .map(|values| Float32Array::from(&values[..]))
            .map_err(|e| self.model_error(&e))
    }

    /// Scores documents against a query.
    pub async fn rerank(
        &self,
        query: String,
        documents: JsValue,
        options: JsValue,
    ) -> JsResult<Array> {
        let rerank = async {
            let abort = abort_flag(&options);
            let documents = string_list("documents", &documents)?;
            let mut taken = self.acquire_model(Task::Rerank)?;
            let Some(TaskModel::Rerank(model)) = &mut taken.model else {
                return Err(wrong_task());
            };
            let request: RerankRequest = from_js("rerank", options)?;
            model
                .rerank(&query, &documents, request.instruction.as_deref(), &abort)
                .await
        };
        let scores = rerank.await.map_err(|e| self.model_error(&e))?;
        Ok(scores
            .iter()
            .map(|score| JsValue::from_f64(f64::from(*score)))
            .collect())
    }
}
