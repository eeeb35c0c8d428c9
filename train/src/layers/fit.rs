//! How a network is fitted: loss, optimizer, epochs.

use super::fields::refuse;
use crate::kernels::update::Optimizer;
use jerboa::Result;
use serde_json::Value;

/// What a fit makes small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Loss {
    /// Mean of the squared differences of all elements.
    MeanSquare,
    /// Mean of the softmax cross-entropy over the last dimension, with a label for each row.
    CrossEntropy,
}

impl Loss {
    /// Parses the value of the option `loss`.
    ///
    /// # Errors
    /// `Request` for other names.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "mse" => Ok(Self::MeanSquare),
            "crossEntropy" => Ok(Self::CrossEntropy),
            other => Err(refuse(
                "loss",
                &format!("'{other}' is not supported. Use 'mse' or 'crossEntropy'."),
            )),
        }
    }
}

/// How a network is fitted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FitOptions {
    /// The loss.
    pub loss: Loss,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Learning rate.
    pub learning_rate: f32,
    /// Weight decay.
    pub weight_decay: f32,
    /// Largest norm of all gradients; 0 for any.
    pub max_norm: f32,
    /// Passes over the examples.
    pub epochs: usize,
    /// Examples per step.
    pub batch_size: usize,
    /// Seed of the order of the examples.
    pub seed: u64,
    /// Whether the order changes from epoch to epoch.
    pub shuffle: bool,
}

impl Default for FitOptions {
    fn default() -> Self {
        Self {
            loss: Loss::MeanSquare,
            optimizer: Optimizer::ADAMW,
            learning_rate: 1e-3,
            weight_decay: 0.0,
            max_norm: 0.0,
            epochs: 1,
            batch_size: 32,
            seed: 0,
            shuffle: true,
        }
    }
}

impl FitOptions {
    /// Reads the options of the facade's `fit`.
    ///
    /// # Errors
    /// `Request` for a number out of bounds.
    pub fn from_json(value: &Value) -> Result<Self> {
        let default = Self::default();
        let number = |value: &Value, name: &str, default: f32, [min, max]: [f64; 2]| match (
            value.get(name).filter(|v| !v.is_null()),
            value[name].as_f64(),
        ) {
            (None, _) => Ok(default),
            (Some(_), Some(number)) if (min..=max).contains(&number) => Ok(number as f32),
            _ => {
                let reason = format!("it must be a number from {min} to {max}.");
                Err(refuse(name, &reason))
            }
        };
        let whole = |name: &str, default: usize| match value.get(name).filter(|v| !v.is_null()) {
            None => Ok(default),
            Some(own) => own
                .as_u64()
                .filter(|size| (1..=1 << 24).contains(size))
                .map(|size| size as usize)
                .ok_or_else(|| refuse(name, "it must be a whole number from 1 to 16777216.")),
        };
        let optimizer = &value["optimizer"];
        let kind = optimizer.as_str().or(optimizer["type"].as_str());
        let rate = |default: f32| number(optimizer, "learningRate", default, [0.0, 1e3]);
        let (optimizer_kind, learning_rate, decay) = match kind.unwrap_or("adamw") {
            "sgd" => {
                let momentum = number(optimizer, "momentum", 0.0, [0.0, 1.0])?;
                (Optimizer::Sgd { momentum }, rate(1e-2)?, 0.0)
            }
            "adamw" => {
                let adamw = Optimizer::AdamW {
                    beta1: number(optimizer, "beta1", 0.9, [0.0, 0.999_999])?,
                    beta2: number(optimizer, "beta2", 0.999, [0.0, 0.999_999])?,
                    eps: number(optimizer, "eps", 1e-8, [0.0, 1.0])?,
                };
                (adamw, rate(1e-3)?, 0.0)
            }
            other => {
                let reason = format!("'{other}' is not supported. Use 'sgd' or 'adamw'.");
                return Err(refuse("optimizer", &reason));
            }
        };
        Ok(Self {
            loss: Loss::from_name(value["loss"].as_str().unwrap_or("mse"))?,
            optimizer: optimizer_kind,
            learning_rate,
            weight_decay: number(optimizer, "weightDecay", decay, [0.0, 1.0])?,
            max_norm: number(value, "maxNorm", default.max_norm, [0.0, 1e9])?,
            epochs: whole("epochs", default.epochs)?,
            batch_size: whole("batchSize", default.batch_size)?,
            seed: value["seed"]
                .as_f64()
                .map_or(default.seed, |seed| seed as u64),
            shuffle: value["shuffle"].as_bool().unwrap_or(default.shuffle),
        })
    }
}
