//! Decoder of NanoCodec: a causal HiFi-GAN from dequantized codes to samples. Source: NVIDIA NeMo's
//! `CausalHiFiGANDecoder`. Weights have their norms folded in, as `{name}.conv.weight`.

use super::config::Config;
use super::speech::{conv, unsupported};
use crate::Result;
use crate::format::Checkpoint;
use crate::ir::{
    Activation, ConvTranspose1d, Dim, Graph, GraphBuilder, Im2Col, Scale, Snake, ValueId,
};
use serde_json::{Value, json};

/// Largest product of the kernel sizes, and of the dilations, of residual blocks.
const MAX_TAPS: usize = 1 << 16;
/// Largest product of the upsampling rates; published codecs have 1,764.
const MAX_SAMPLES_PER_FRAME: usize = 1 << 16;

/// Builds the graph from "values" `[frames, input_dim]` to unclamped samples `[samples, 1]`.
///
/// # Errors
/// `Config` or `UnsupportedOption`.
pub fn nanocodec(config: Config<'_>) -> Result<Graph> {
    for (field, only) in [
        ("activation", "half_snake"),
        ("pad_mode", "zeros"),
        ("output_activation", "clamp"),
    ] {
        if config.string(field).is_some_and(|found| found != only) {
            return Err(unsupported(
                config,
                &format!("'{field}'"),
                &format!("The only supported value is '{only}'."),
            ));
        }
    }
    let list = |field: &str, usual: &[usize]| -> Vec<usize> {
        let found = config.get(field).and_then(Value::as_array);
        found.map_or(usual.to_vec(), |a| {
            a.iter()
                .filter_map(|v| v.as_u64().map(|n| n as usize))
                .collect()
        })
    };
    let kernels = list("resblock_kernel_sizes", &[3, 7, 11]);
    let dilations = list("resblock_dilation_sizes", &[1, 3, 5]);
    let rates = list("up_sample_rates", &[7, 7, 6, 3, 2]);
    for (field, values, max) in [
        ("resblock_kernel_sizes", &kernels, MAX_TAPS),
        ("resblock_dilation_sizes", &dilations, MAX_TAPS),
        ("up_sample_rates", &rates, MAX_SAMPLES_PER_FRAME),
    ] {
        let product = values
            .iter()
            .try_fold(1, |all: usize, n| all.checked_mul(*n));
        if product.is_none_or(|n| n == 0 || n > max) {
            let hint = format!("The product of its numbers must be from 1 to {max}.");
            return Err(unsupported(config, &format!("'{field}'"), &hint));
        }
    }

    let mut b = GraphBuilder::new("nanocodec");
    let p = "audio_decoder";
    let mut cols = config.count_or("base_channels", 864)?;
    let x = b.input("values", Dim::TOKENS, config.count_or("input_dim", 16)?);
    let first = config.count_or("in_kernel_size", 7)?;
    let mut x = causal_conv(&mut b, &format!("{p}.pre_conv"), x, first, 1, cols);
    for (stage, rate) in rates.into_iter().enumerate() {
        x = snake(&mut b, &format!("{p}.activations.{stage}"), x);
        x = upsample(
            &mut b,
            &format!("{p}.up_sample_conv_layers.{stage}"),
            x,
            rate,
        );
        cols /= 2;
        let chains: Vec<ValueId> = (0..kernels.len())
            .map(|k| {
                residual_chain(
                    &mut b,
                    &format!("{p}.res_layers.{stage}.res_blocks.{k}.res_blocks"),
                    x,
                    kernels[k],
                    &dilations,
                )
            })
            .collect();
        let name = format!("{p}.res_layers.{stage}");
        let sum = chains
            .into_iter()
            .reduce(|a, c| b.add(&name, a, c))
            .unwrap_or(x);
        x = b.node(
            &format!("{name}.mean"),
            Scale(1.0 / kernels.len() as f32),
            &[sum],
            cols,
        );
    }
    x = snake(&mut b, &format!("{p}.post_activation"), x);
    let last = config.count_or("out_kernel_size", 3)?;
    let out = causal_conv(&mut b, &format!("{p}.post_conv"), x, last, 1, 1);
    b.finish(out, None)
}

/// Infers the configuration from a published checkpoint's tensors; takes sampling rate and levels
/// from `config`.
///
/// # Errors
/// `UnknownArchitecture` for tensors of another model.
pub fn infer_config(config: &Value, checkpoint: &Checkpoint) -> Result<Value> {
    // The shape of a convolution `[outputs, inputs, taps]`; its weight can be stored in two parts.
    let shape = |name: &str| {
        let parts = [".weight", ".parametrizations.weight.original1", ".weight_v"];
        let tensor = |part| checkpoint.get(&format!("audio_decoder.{name}.conv{part}"));
        parts
            .into_iter()
            .find_map(tensor)
            .map(|tensor| &tensor.shape)
            .filter(|shape| shape.len() == 3)
    };
    let block = |kernel: usize, dilation: usize| {
        shape(&format!(
            "res_layers.0.res_blocks.{kernel}.res_blocks.{dilation}.input_conv"
        ))
        .map(|shape| shape[2])
    };
    let (Some(first), Some(last)) = (shape("pre_conv"), shape("post_conv")) else {
        let kind = config.get("model_type").and_then(Value::as_str);
        let name = kind.unwrap_or("a codec without audio_decoder.pre_conv");
        return Err(super::unknown_architecture(
            name,
            [super::CODEC_MODEL_TYPE].into_iter(),
        ));
    };
    let rates = (0..)
        .map_while(|i| shape(&format!("up_sample_conv_layers.{i}")))
        .map(|shape| shape[2] / 2);
    let kernels: Vec<usize> = (0..).map_while(|k| block(k, 0)).collect();
    let dilations: Vec<usize> = (0..)
        .map_while(|d| block(0, d).map(|_| 2 * d + 1))
        .collect();
    let mut made = json!({
        "model_type": super::CODEC_MODEL_TYPE, "input_dim": first[1], "base_channels": first[0], "in_kernel_size": first[2],
        "out_kernel_size": last[2], "up_sample_rates": rates.collect::<Vec<_>>(),
        "resblock_kernel_sizes": kernels, "resblock_dilation_sizes": dilations,
    });
    let quantizer = config
        .get("vector_quantizer")
        .or(config.get("quantizer"))
        .unwrap_or(&Value::Null);
    let named = |name: &str| {
        config
            .get(name)
            .or(quantizer.get(name))
            .filter(|value| !value.is_null())
    };
    let found = [
        ("sample_rate", named("sample_rate")),
        (
            "num_levels",
            named("num_levels_per_group").or(named("num_levels")),
        ),
    ];
    for (name, value) in found {
        if let Some(value) = value {
            made[name] = value.clone();
        }
    }
    Ok(made)
}

fn causal_conv(
    b: &mut GraphBuilder,
    name: &str,
    x: ValueId,
    taps: usize,
    dilation: usize,
    outputs: usize,
) -> ValueId {
    conv(
        b,
        &format!("{name}.conv"),
        x,
        Im2Col::causal(taps, 1, dilation),
        outputs,
        true,
        Activation::None,
    )
}

/// Adds half-Snake: the Snake activation on the first half of the columns.
fn snake(b: &mut GraphBuilder, name: &str, x: ValueId) -> ValueId {
    let cols = b.cols(x);
    let alpha = b.vector(&format!("{name}.activation.snake_act.alpha"), cols / 2);
    b.node(name, Snake { alpha }, &[x], cols)
}

/// Adds a transposed convolution: half the columns, `rate` times the rows. Each output column reads
/// two input columns.
fn upsample(b: &mut GraphBuilder, name: &str, x: ValueId, rate: usize) -> ValueId {
    let cols = b.cols(x);
    let taps = 2 * rate;

    let weight = b.vector(&format!("{name}.conv.weight"), cols * taps);
    let bias = Some(b.vector(&format!("{name}.conv.bias"), cols / 2));
    b.node(
        name,
        ConvTranspose1d {
            weight,
            bias,
            groups: cols / 2,
            kernel_size: taps,
            rate,
        },
        &[x],
        cols / 2,
    )
}

/// Adds residual blocks in sequence, one for each dilation.
fn residual_chain(
    b: &mut GraphBuilder,
    name: &str,
    mut x: ValueId,
    taps: usize,
    dilations: &[usize],
) -> ValueId {
    let cols = b.cols(x);
    for (index, dilation) in dilations.iter().enumerate() {
        let name = format!("{name}.{index}");
        let y = snake(b, &format!("{name}.input_activation"), x);
        let y = causal_conv(b, &format!("{name}.input_conv"), y, taps, *dilation, cols);
        let y = snake(b, &format!("{name}.skip_activation"), y);
        let y = causal_conv(b, &format!("{name}.skip_conv"), y, taps, 1, cols);
        x = b.add(&format!("{name}.sum"), x, y);
    }
    x
}
