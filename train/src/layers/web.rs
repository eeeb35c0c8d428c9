//! Networks in pages. Converts requests and results; contains no logic of its own.

use super::build::{Elements, count};
use super::fit::{FitOptions, Loss};
use super::network::{FitRun, Network};
use crate::tensors::{NamedTensor, read_safetensors, write_safetensors};
use jerboa::gpu::{Backend, DeviceOptions, Gpu};
use jerboa::web::JsResult;
use jerboa::web::values::{from_js, to_js, to_plain_js};
use jerboa::{Error, Result};
use js_sys::{Float32Array, Uint8Array};
use serde_json::{Value, json};
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// A network of layers on the GPU. Numbers and ids come as 32-bit words of typed arrays.
#[wasm_bindgen(js_name = LayerNetwork)]
pub struct LayerNetwork {
    network: Network,
    run: Option<FitRun>,
}

#[wasm_bindgen(js_class = LayerNetwork)]
impl LayerNetwork {
    /// Builds a network from `{ input, layers }`, with weights by a seed.
    pub async fn open(description: JsValue, seed: f64) -> JsResult<LayerNetwork> {
        let opened = open(description, seed as u64).await;
        opened.map_err(|e| to_js(&e))
    }

    /// Shapes and weights: `{ inputShape, outputShape, inputType, weights: [{ name, shape }],
    /// parameters }`.
    pub fn info(&self) -> JsValue {
        let weights = self.network.weight_list();
        let list: Vec<Value> = weights
            .iter()
            .map(|weight| json!({ "name": weight.name, "shape": weight.shape }))
            .collect();
        let is_ids = matches!(self.network.input_elements(), Elements::Ids(_));
        let parameters: usize = weights.iter().map(|weight| count(&weight.shape)).sum();
        to_plain_js(&json!({
            "inputShape": self.network.input_shape(),
            "outputShape": self.network.output_shape(),
            "inputType": if is_ids { "ids" } else { "float32" },
            "weights": list,
            "parameters": parameters,
        }))
    }

    /// The outputs of examples.
    pub async fn predict(&mut self, x: Vec<u32>, batch_size: usize) -> JsResult<Float32Array> {
        let outputs = self.network.predict(&x, batch_size).await;
        let outputs = outputs.map_err(|e| to_js(&e))?;
        Ok(Float32Array::from(&outputs[..]))
    }

    /// The mean loss of examples.
    pub async fn evaluate(
        &mut self,
        x: Vec<u32>,
        y: Vec<u32>,
        loss: String,
        batch_size: usize,
    ) -> JsResult<f32> {
        let loss = Loss::from_name(&loss).map_err(|e| to_js(&e))?;
        let found = self.network.evaluate(&x, &y, loss, batch_size).await;
        found.map_err(|e| to_js(&e))
    }

    /// Starts a fit.
    pub fn start(&mut self, x: Vec<u32>, y: Vec<u32>, options: JsValue) -> JsResult<()> {
        let started = from_js("options", options)
            .and_then(|options: Value| FitOptions::from_json(&options))
            .and_then(|options| self.network.start(x, y, options));
        self.run = Some(started.map_err(|e| to_js(&e))?);
        Ok(())
    }

    /// Goes on with the fit: `{ epoch, step, steps, loss, isEpochEnd }`; null at the end.
    pub async fn advance(&mut self) -> JsResult<JsValue> {
        let Some(run) = &mut self.run else {
            return Ok(JsValue::NULL);
        };
        let done = self.network.advance(run).await.map_err(|e| to_js(&e))?;
        let Some(done) = done else {
            self.run = None;
            return Ok(JsValue::NULL);
        };
        Ok(to_plain_js(&json!({
            "epoch": done.epoch,
            "step": done.step,
            "steps": done.steps,
            "loss": done.loss,
            "isEpochEnd": done.is_epoch_end,
        })))
    }

    /// The weights as the bytes of a safetensors file.
    pub async fn weights(&self) -> JsResult<Uint8Array> {
        let tensors = self.network.weights().await.map_err(|e| to_js(&e))?;
        Ok(Uint8Array::from(&write_safetensors(&tensors)[..]))
    }

    /// Replaces the weights that a safetensors file has.
    #[wasm_bindgen(js_name = setWeights)]
    pub fn set_weights(&self, bytes: &[u8]) -> JsResult<()> {
        let tensors = read(bytes).and_then(|tensors| self.network.set_weights(&tensors));
        tensors.map_err(|e| to_js(&e))
    }
}

async fn open(description: JsValue, seed: u64) -> Result<LayerNetwork> {
    let description: Value = from_js("layers", description)?;
    let gpu = Rc::new(Gpu::open(&DeviceOptions::default()).await?);
    let network = Network::new(gpu, &description, seed)?;
    Ok(LayerNetwork { network, run: None })
}

fn read(bytes: &[u8]) -> Result<Vec<NamedTensor>> {
    read_safetensors(bytes).map_err(|reason| Error::Malformed {
        file: "weights".into(),
        format: "safetensors",
        reason,
    })
}
