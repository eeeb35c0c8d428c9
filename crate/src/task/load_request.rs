//! Options of a load, with the JavaScript API's field names: where the files are, how the model runs
//! and which device features it uses.

use crate::exec::{ExpertBudget, Precision, RunOptions, TuneMode, quantize_inputs_from_name};
use crate::gpu::{DeviceOptions, SubmitGrouping, VariantOverride};
use crate::hub::HubOptions;
use crate::kernels::attention::Kv;
use crate::schema::{OptionValue, request_options};
use crate::{Error, Result};

/// The value of `draft` that selects the multi-token-prediction head of the model's checkpoint.
pub const MTP_DRAFT: &str = "mtp";

/// Names of [`Precision`].
const PRECISIONS: &[&str] = &["auto", "f32", "f16", "q8", "q4"];

request_options! {
    /// Options of a load, besides the source and what JavaScript passes as objects.
    pub struct LoadRequest, LOAD_OPTIONS {
        /// A Hugging Face access token, for gated and private repositories. It is sent to `endpoint`
        /// only and never stored.
        token: Option<String> = None => RequestOption::text().default("none").of(&[Api::Load]);
        /// A branch, tag or commit.
        revision: Option<String> = None => RequestOption::text()
            .default("main")
            .of(&[Api::Load]);
        /// A Hub server other than `https://huggingface.co`.
        endpoint: Option<String> = None => RequestOption::text()
            .default("the Hub")
            .of(&[Api::Load]);
        /// Maximum tokens of prompt and answer together.
        max_context: Option<usize> = None => RequestOption::integer(1.0, 16_777_216.0)
            .default("the model's, up to 4096")
            .of(&[Api::Load]);
        /// Format of the weights in GPU memory. `auto` keeps the checkpoint's format if it fits the
        /// device's memory, else uses 8 or 4 bits; `model.info.precision` names the choice,
        /// `model.info.warnings` the reason. With `q4`, small models keep 8 bits in some matrices.
        weights: Option<String> = None => RequestOption::one_of(PRECISIONS)
            .default("auto")
            .of(&[Api::Load]);
        /// The same for embeddings and lm_head when the checkpoint does not quantize them. `auto` uses
        /// the format of the other weights, but 8 bits with `q4`: low precision hurts these matrices
        /// most, and they dominate small models with large vocabularies.
        embedding_weights: Option<String> = None => RequestOption::one_of(PRECISIONS)
            .default("auto")
            .of(&[Api::Load]);
        /// GPU memory limit in bytes for `auto`; by default what the device does not refuse. A model that
        /// exceeds it loads with a warning; of a list of models none that exceeds it loads.
        max_memory: Option<u64> = None => RequestOption::bytes()
            .default("what the device has")
            .of(&[Api::Load]);
        /// Splits weights larger than this many bytes into several buffers, even when the device allows
        /// larger ones; for tests.
        max_weight_buffer: Option<u64> = None => RequestOption::bytes()
            .default("the device's")
            .of(&[Api::Load]);
        /// Precision of matmul inputs in prompts. `auto` is `int8` for weights of at most 8 bits on GPUs
        /// with packed dot products and without subgroup matrices; there and with them, requests that
        /// decode together have 8-bit inputs as well.
        activations: Option<String> = None => RequestOption::one_of(&["auto", "f32", "int8"])
            .default("auto")
            .of(&[Api::Load]);
        /// Format of the KV cache; `auto` chooses for the device.
        kv: Option<String> = None => RequestOption::one_of(&["auto", "f32", "f16", "packed", "int8"])
            .default("auto")
            .of(&[Api::Load]);
        /// Growth step of the KV cache in tokens; 0 allocates all of `maxContext` at load.
        kv_growth: Option<usize> = None => RequestOption::count(0.0)
            .default("512")
            .of(&[Api::Load]);
        /// GPU memory of a conversation's KV cache in bytes. Layers beyond it stay in main memory and are
        /// copied to the GPU for each step: slow, but long contexts run on small GPUs. `kvGrowth` is then at
        /// most 512.
        max_kv_memory: Option<u64> = None => RequestOption::bytes()
            .default("as much as `maxContext` needs")
            .of(&[Api::Load]);
        /// Experts per layer that stay on the GPU, at least as many as the router selects per token. The
        /// others are read from the browser's cache when selected.
        experts: Option<usize> = None => RequestOption::count(1.0)
            .default("all that fit")
            .of(&[Api::Load]);
        /// The same limit as bytes over all layers.
        expert_bytes: Option<u64> = None => RequestOption::bytes()
            .default("all that fit")
            .of(&[Api::Load]);
        /// Prefetches the next layer's likely experts.
        prefetch_experts: Option<bool> = None => RequestOption::boolean()
            .default("true")
            .of(&[Api::Load]);
        /// Reads rows of lookup-only tables, such as Gemma's per-layer embeddings, from the browser's
        /// cache on demand.
        page_embeddings: Option<bool> = None => RequestOption::boolean()
            .default("when memory is short")
            .of(&[Api::Load]);
        /// Autotuning of kernel variants. `auto` uses stored results, else measures for about 50 ms,
        /// except on a software adapter. `off` uses the defaults, `force` always measures. Results are
        /// cached like files (see `cache`).
        tune: Option<String> = None => RequestOption::one_of(&["auto", "off", "force"])
            .default("auto")
            .of(&[Api::Load]);
        /// Compiles separate kernels for prompts of up to 32 tokens, such as later turns of a chat, once
        /// the model has been idle for a second. Not done on a software adapter by default.
        short_prefill: Option<bool> = None => RequestOption::boolean()
            .default("true")
            .of(&[Api::Load]);
        /// Switches device features off, for comparison or to work around a driver bug.
        features: Option<DeviceFeatures> = None => RequestOption::new(OptionType::Options("DeviceFeatures"))
            .default("all")
            .of(&[Api::Load]);
        /// The page's `navigator.maxTouchPoints`, which tells an iPad from a Mac and is missing in
        /// workers. Set by the facade.
        touch_points: Option<u32> = None => RequestOption::count(0.0);
        /// False bypasses the browser's cache.
        cache: Option<bool> = None => RequestOption::boolean().default("true").of(&[Api::Load]);
        /// The model's task, when its files do not say or are wrong.
        task: Option<String> = None => RequestOption::one_of(&["generate", "embed", "rerank", "transcribe", "speak"])
            .default("from the files")
            .of(&[Api::Load]);
        /// The codec of a text-to-speech model: a repository or a folder's URL.
        codec: Option<String> = None => RequestOption::text().default("none").of(&[Api::Load]);
        /// A smaller model of the same vocabulary that proposes tokens, which the model verifies in one
        /// step: a repository or a folder's URL. `mtp` uses the multi-token-prediction head of the
        /// model's own checkpoint (Qwen3.5). The answer stays the same.
        draft: Option<String> = None => RequestOption::text().default("none").of(&[Api::Load]);
        /// Refuses a model that does not fit the device's memory, usually before its weights are
        /// downloaded.
        must_fit: Option<bool> = None => RequestOption::boolean();
    }
}

request_options! {
    /// Device features that a load may switch off.
    pub struct DeviceFeatures, FEATURE_OPTIONS {
        /// Subgroup operations.
        subgroups: Option<bool> = None => RequestOption::boolean()
            .default("true")
            .of(&[Api::Features]);
        /// `shader-f16`: arithmetic in half precision.
        f16: Option<bool> = None => RequestOption::boolean()
            .default("true")
            .of(&[Api::Features]);
        /// Subgroup matrices (tensor cores), used in prefill.
        matrix: Option<bool> = None => RequestOption::boolean()
            .default("true")
            .of(&[Api::Features]);
        /// `minimum` requests only the limits that every WebGPU device has.
        limits: Option<String> = None => RequestOption::one_of(&["all", "minimum"])
            .default("all")
            .of(&[Api::Features]);
        /// Dispatches per command buffer, with one buffer in flight; `free` submits work as it is
        /// recorded. On WebKit the default is what calibration found.
        group: Option<String> = None => RequestOption::one_of(&["free", "all", "1", "8", "64"])
            .default("free")
            .of(&[Api::Features]);
        /// Sets a kernel parameter such as `gemm.BM=32`; shaders/variants.toml lists them.
        force: Option<String> = None => RequestOption::text()
            .default("none")
            .of(&[Api::Features]);
    }
}

impl OptionValue for DeviceFeatures {}

impl LoadRequest {
    /// How the model runs.
    ///
    /// # Errors
    /// `Request`, which names the wrong option.
    pub fn run_options(&self) -> Result<RunOptions> {
        self.check_bounds()?;
        let mut run = RunOptions {
            max_context: self.max_context,
            memory: self.max_memory,
            kv_memory: self.max_kv_memory,
            max_weight_buffer: self.max_weight_buffer,
            page_embeddings: self.page_embeddings,
            short_prefill: self.short_prefill,
            must_fit: self.must_fit == Some(true),
            prefetch_experts: self.prefetch_experts != Some(false),
            stores_hidden: self.draft.as_deref() == Some(MTP_DRAFT),
            ..RunOptions::default()
        };
        run.kv_growth = self.kv_growth.unwrap_or(run.kv_growth);
        run.experts = self
            .experts
            .map(ExpertBudget::PerLayer)
            .or(self.expert_bytes.map(ExpertBudget::MaxBytes));
        if let Some(weights) = &self.weights {
            run.overrides.precision = Precision::from_name("weights", weights)?;
        }
        if let Some(tables) = &self.embedding_weights {
            run.overrides.tables = Precision::from_name("embeddingWeights", tables)?;
        }
        if let Some(activations) = &self.activations {
            run.overrides.activations = quantize_inputs_from_name("activations", activations)?;
        }
        if let Some(tune) = &self.tune {
            run.tune = TuneMode::from_name("tune", tune)?;
        }
        run.overrides.kv_type = self.kv.as_deref().and_then(Kv::from_name);
        Ok(run)
    }

    /// The device options.
    ///
    /// # Errors
    /// `Request`, which names the wrong option.
    pub fn device_options(&self) -> Result<DeviceOptions> {
        let features = self.features.clone().unwrap_or_default();
        features.check_bounds()?;
        Ok(DeviceOptions {
            f16: features.f16 != Some(false),
            subgroups: features.subgroups != Some(false),
            matrix: features.matrix != Some(false),
            min_limits: features.limits.as_deref() == Some("minimum"),
            submit_grouping: features
                .group
                .as_deref()
                .map(parse_submit_group)
                .transpose()?,
            variant_override: features
                .force
                .as_deref()
                .map(parse_variant_override)
                .transpose()?,
            touch_points: self.touch_points.unwrap_or_default(),
            ..DeviceOptions::default()
        })
    }

    /// The download options.
    pub fn hub_options(&self) -> HubOptions {
        HubOptions {
            revision: self.revision.clone(),
            token: self.token.clone(),
            endpoint: self.endpoint.clone(),
            cache: self.cache != Some(false),
            ..HubOptions::default()
        }
    }
}

/// Parses the option `group`.
///
/// # Errors
/// `Request` for another value.
pub fn parse_submit_group(name: &str) -> Result<SubmitGrouping> {
    let unknown = || {
        refuse(
            "group",
            format!("'{name}' is not valid. Use 'free', 'all' or a number of dispatches."),
        )
    };
    SubmitGrouping::from_name(name).ok_or_else(unknown)
}

fn parse_variant_override(text: &str) -> Result<VariantOverride> {
    let unknown = || {
        refuse(
            "features.force",
            format!(
                "'{text}' is not a constant of shaders/variants.toml. Use a form such as gemm.BM=32."
            ),
        )
    };
    VariantOverride::from_name(text).ok_or_else(unknown)
}

fn refuse(parameter: &str, reason: String) -> Error {
    Error::Request {
        parameter: parameter.into(),
        reason,
    }
}
