//! OLMo 2: norms after each part and none before, norms over whole projections of q and k.
//! Reference: transformers `modeling_olmo2.py`.

use super::blocks::{Names, QkNorm};
use super::config::Config;
use super::family::Family;
use super::{llama, qwen};
use crate::Result;
use crate::format::{gguf, mlc};
use crate::ir::Graph;

pub(super) static FAMILIES: &[Family] = &[Family {
    classes: &["Olmo2ForCausalLM"],
    model_types: &["olmo2"],
    silent: r#"{"rms_norm_eps": 1e-5}"#,
    decoder: Some(olmo2),
    gguf: &[gguf::Architecture::new("olmo2", "olmo2", "Olmo2ForCausalLM")],
    mlc: &[mlc::Architecture::new("olmo2", "olmo2", "Olmo2ForCausalLM")],
    ..Family::NONE
}];

/// `Olmo2ForCausalLM`.
fn olmo2(config: Config<'_>) -> Result<Graph> {
    let mut dense = llama::dense(config, false)?;
    dense.names = Names::POST;
    dense.mlps(|m| m.bias = false);
    let spec = dense.norm;
    dense.attentions(|a| a.qk_norm = Some(QkNorm { whole: true, ..qwen::head_norm(spec) }));
    dense.graph()
}
