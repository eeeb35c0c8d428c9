//! Moonshine and Moonshine streaming, from samples at 16 kHz to logits. Reference: transformers
//! `modeling_moonshine.py`, `modeling_moonshine_streaming.py`.

use super::blocks::cross_attention::{
    CrossNorms, CrossProjections, DecoderAttention, LayerDims, cross_kv_graph, cross_kv_inputs,
    encoder_self_attention,
};
use super::config::Config;
use super::encoder::dense;
use super::speech::{
    AudioFrontend, SpeechGraphs, conv, interleaved_rope, output_head, token_embeddings, unsupported,
};
use crate::Result;
use crate::ir::{
    Activation, AddPositionEmbedding, Asinh, Dim, Gated, Graph, GraphBuilder, GroupNorm, Im2Col,
    Norm, ValueId,
};

/// Samples per row of Moonshine's input "samples": the stride of its first convolution.
pub const SAMPLES_PER_ROW: usize = 64;
/// Samples per row of the streaming encoder's input "samples".
pub const SAMPLES_PER_FRAME: usize = 80;

const NORMS: CrossNorms = CrossNorms {
    gain: "weight",
    bias: false,
    offset: 0.0,
};
const STREAMING: CrossNorms = CrossNorms {
    gain: "gamma",
    bias: false,
    offset: 1.0,
};
const PROJECTIONS: CrossProjections = CrossProjections {
    bias: false,
    out: "o_proj",
};
/// Defaults for absent configuration fields.
#[derive(Clone, Copy)]
struct MoonshineDefaults {
    /// Whether the output head is the token embedding table.
    tied: bool,
    /// Fraction of a head that RoPE rotates.
    rotary_fraction: f64,
}

const DEFAULTS: MoonshineDefaults = MoonshineDefaults {
    tied: true,
    rotary_fraction: 0.9,
};
/// Samples per row of Moonshine's encoder states.
const SAMPLES_PER_STATE: usize = 384;
/// Samples per row of the streaming encoder's states.
const SAMPLES_PER_STREAM_STATE: usize = 320;
/// Maximum samples per run: 60 s, twice the length the model was trained on.
const MAX_SAMPLES: usize = 60 * 16_000;

/// Builds the graphs of a Moonshine checkpoint. Audio of `n` samples has `(n + 1) / 64` rows,
/// padded with zeros.
///
/// # Errors
/// `Config` or `UnsupportedOption`.
pub fn moonshine(config: Config<'_>) -> Result<SpeechGraphs> {
    check_config(config)?;
    let names = |part: &'static str| match part {
        "encoder" => [
            "hidden_size",
            "intermediate_size",
            "encoder_num_hidden_layers",
            "encoder_num_attention_heads",
        ],
        _ => [
            "hidden_size",
            "intermediate_size",
            "decoder_num_hidden_layers",
            "decoder_num_attention_heads",
        ],
    };
    let encoder = LayerDims::read(config, names("encoder"))?;
    let decoder = LayerDims::read(config, names("decoder"))?;

    let plain = |_: &mut GraphBuilder, x: ValueId| x;
    Ok(SpeechGraphs {
        encoder: encode(config, &encoder)?,
        keys: cross_kv_graph(
            "moonshine keys",
            "k_proj",
            false,
            encoder.hidden,
            &decoder,
            &plain,
        )?,
        values: cross_kv_graph(
            "moonshine values",
            "v_proj",
            false,
            encoder.hidden,
            &decoder,
            &plain,
        )?,
        decoder: decode(
            config,
            &decoder,
            config.activation("decoder_hidden_act", "silu")?,
            MAX_SAMPLES / SAMPLES_PER_STATE,
            DEFAULTS,
        )?,
        state_cols: encoder.hidden,
        frontend: AudioFrontend::Samples {
            cols: SAMPLES_PER_ROW,
            plus: 1,
            use_partial_row: true,
            max_samples: MAX_SAMPLES,
        },
        max_states: MAX_SAMPLES / SAMPLES_PER_STATE,
    })
}

/// Builds the graphs of a Moonshine streaming checkpoint. Audio has a row for each 80 samples. An
/// incomplete last row is zeroed, as by the processor's mask.
///
/// # Errors
/// `Config` or `UnsupportedOption`.
pub fn moonshine_streaming(config: Config<'_>) -> Result<SpeechGraphs> {
    check_config(config)?;
    let names = [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
    ];
    let inner = config.nested("encoder_config").ok_or_else(|| {
        unsupported(
            config,
            "a missing encoder_config",
            "Add it from the published config.json.",
        )
    })?;
    let encoder = LayerDims::read(inner, names)?;
    let decoder = LayerDims::read(config, names)?;

    let most = config.count("max_position_embeddings")?;
    let share = if config.get("rope_parameters").is_some() {
        1.0
    } else {
        0.8
    };
    let usual = MoonshineDefaults {
        tied: false,
        rotary_fraction: share,
    };
    let before = |b: &mut GraphBuilder, x: ValueId| {
        let table = b.vector("model.decoder.pos_emb.weight", most * encoder.hidden);
        let embedded = b.node(
            "model.decoder.pos_emb",
            AddPositionEmbedding { table },
            &[x],
            encoder.hidden,
        );
        if encoder.hidden == decoder.hidden {
            return embedded;
        }
        b.linear("model.decoder.proj", embedded, decoder.hidden, false)
    };
    Ok(SpeechGraphs {
        encoder: encode_streaming(inner, &encoder)?,
        keys: cross_kv_graph(
            "moonshine streaming keys",
            "k_proj",
            false,
            encoder.hidden,
            &decoder,
            &before,
        )?,
        values: cross_kv_graph(
            "moonshine streaming values",
            "v_proj",
            false,
            encoder.hidden,
            &decoder,
            &before,
        )?,
        decoder: decode(
            config,
            &decoder,
            config.activation("hidden_act", "silu")?,
            most,
            usual,
        )?,
        state_cols: encoder.hidden,
        frontend: AudioFrontend::Samples {
            cols: SAMPLES_PER_FRAME,
            plus: SAMPLES_PER_FRAME - 1,
            use_partial_row: false,
            max_samples: MAX_SAMPLES.min(most * SAMPLES_PER_STREAM_STATE),
        },
        max_states: most,
    })
}

fn check_config(config: Config<'_>) -> Result<()> {
    if config.flag_or("attention_bias", false) {
        return Err(unsupported(
            config,
            "attention_bias = true",
            "The only supported value is false.",
        ));
    }
    for (heads, kv_heads) in [
        ("encoder_num_attention_heads", "encoder_num_key_value_heads"),
        ("decoder_num_attention_heads", "decoder_num_key_value_heads"),
        ("num_attention_heads", "num_key_value_heads"),
    ] {
        if config
            .get(kv_heads)
            .is_some_and(|n| !n.is_null() && Some(n) != config.get(heads))
        {
            return Err(unsupported(
                config,
                &format!("{kv_heads} other than {heads}"),
                "Set both to the same number.",
            ));
        }
    }
    Ok(())
}

/// Adds `y = x + fc2(act(fc1(norm(x))))`.
fn mlp(
    b: &mut GraphBuilder,
    path: &str,
    x: ValueId,
    stack: &LayerDims,
    norms: CrossNorms,
    act: Activation,
) -> ValueId {
    let normed = norms.norm(b, &format!("{path}.post_attention_layernorm"), x);
    let inner = dense(
        b,
        &format!("{path}.mlp.fc1"),
        normed,
        stack.inner,
        true,
        act,
    );
    let out = b.linear(&format!("{path}.mlp.fc2"), inner, stack.hidden, true);
    b.add(&format!("{path}.mlp"), x, out)
}

fn encode(config: Config<'_>, stack: &LayerDims) -> Result<Graph> {
    let mut b = GraphBuilder::new("moonshine encoder");
    let path = "model.encoder";
    let hidden = stack.hidden;

    let act = config.activation("encoder_hidden_act", "gelu")?;
    let samples = b.input("samples", Dim::TOKENS, SAMPLES_PER_ROW);
    // The first convolution has windows of 127 samples every 64: two rows without the last sample.
    let rows = Im2Col {
        by_tap: true,
        ..Im2Col::new(2, 1)
    };
    let pairs = b.node("pairs", rows, &[samples], 2 * SAMPLES_PER_ROW);
    let windows = b.view("windows", pairs, 0, 2 * SAMPLES_PER_ROW - 1);
    let x = dense(
        &mut b,
        &format!("{path}.conv1"),
        windows,
        hidden,
        false,
        Activation::Tanh,
    );
    let gain = b.vector(&format!("{path}.groupnorm.weight"), hidden);
    let bias = b.vector(&format!("{path}.groupnorm.bias"), hidden);
    let x = b.node(
        &format!("{path}.groupnorm"),
        GroupNorm {
            groups: 1,
            gain,
            bias,
            eps: 1e-5,
        },
        &[x],
        hidden,
    );
    let x = conv(
        &mut b,
        &format!("{path}.conv2"),
        x,
        Im2Col::new(7, 3),
        2 * hidden,
        true,
        Activation::Gelu,
    );
    let mut x = conv(
        &mut b,
        &format!("{path}.conv3"),
        x,
        Im2Col::new(3, 2),
        hidden,
        true,
        Activation::Gelu,
    );
    let rope = Some(b.rope(interleaved_rope(
        config,
        stack.head_dim,
        DEFAULTS.rotary_fraction,
    )?));
    for layer in 0..stack.layers {
        let path = format!("{path}.layers.{layer}");
        let normed = NORMS.norm(&mut b, &format!("{path}.input_layernorm"), x);
        let all = [usize::MAX, usize::MAX];
        let seen = encoder_self_attention(
            &mut b,
            &format!("{path}.self_attn"),
            normed,
            stack,
            PROJECTIONS,
            all,
            rope,
        );
        x = b.add(&format!("{path}.attended"), x, seen);
        x = mlp(&mut b, &path, x, stack, NORMS, act);
    }
    let out = NORMS.norm(&mut b, &format!("{path}.layer_norm"), x);
    b.finish(out, None)
}

fn encode_streaming(config: Config<'_>, stack: &LayerDims) -> Result<Graph> {
    let mut b = GraphBuilder::new("moonshine streaming encoder");
    let path = "model.encoder";
    let hidden = stack.hidden;

    let act = config.activation("hidden_act", "gelu")?;
    let frame =
        config.number_or("sample_rate", 16_000.0)? * config.number_or("frame_ms", 5.0)? / 1000.0;
    if frame.round() as usize != SAMPLES_PER_FRAME {
        return Err(unsupported(
            config,
            &format!("a frame of {frame} samples"),
            "Frames must have 80 samples.",
        ));
    }
    let samples = b.input("samples", Dim::TOKENS, SAMPLES_PER_FRAME);
    let norm = Norm {
        gain: None,
        bias: None,
        layer: true,
        offset: 0.0,
        eps: 1e-6,
    };
    let x = b.node(
        &format!("{path}.embedder.cmvn"),
        norm,
        &[samples],
        SAMPLES_PER_FRAME,
    );
    let k = b.vector(&format!("{path}.embedder.comp.log_k"), 1);
    let x = b.node(
        &format!("{path}.embedder.comp"),
        Asinh { k },
        &[x],
        SAMPLES_PER_FRAME,
    );
    let x = dense(
        &mut b,
        &format!("{path}.embedder.linear"),
        x,
        hidden,
        false,
        Activation::Silu,
    );
    let causal = Im2Col::causal(5, 2, 1);
    let x = conv(
        &mut b,
        &format!("{path}.embedder.conv1"),
        x,
        causal,
        2 * hidden,
        true,
        Activation::Silu,
    );
    let mut x = conv(
        &mut b,
        &format!("{path}.embedder.conv2"),
        x,
        causal,
        hidden,
        true,
        Activation::None,
    );
    for layer in 0..stack.layers {
        let window = |side: usize| {
            let windows = config
                .get("sliding_windows")
                .and_then(|w| w.get(layer)?.get(side)?.as_u64());
            windows.map_or(usize::MAX, |n| (n as usize).saturating_sub(1))
        };
        let path = format!("{path}.layers.{layer}");
        let normed = STREAMING.norm(&mut b, &format!("{path}.input_layernorm"), x);
        let sides = [window(0), window(1)];
        let seen = encoder_self_attention(
            &mut b,
            &format!("{path}.self_attn"),
            normed,
            stack,
            PROJECTIONS,
            sides,
            None,
        );
        x = b.add(&format!("{path}.attended"), x, seen);
        x = mlp(&mut b, &path, x, stack, STREAMING, act);
    }
    let out = STREAMING.norm(&mut b, &format!("{path}.final_norm"), x);
    b.finish(out, None)
}

fn decode(
    config: Config<'_>,
    stack: &LayerDims,
    act: Activation,
    most: usize,
    usual: MoonshineDefaults,
) -> Result<Graph> {
    let mut b = GraphBuilder::new("moonshine");
    let path = "model.decoder";
    let memory = cross_kv_inputs(&mut b, stack, most);
    let vocab = config.count("vocab_size")?;
    let (table, mut x) =
        token_embeddings(&mut b, &format!("{path}.embed_tokens"), vocab, stack.hidden);
    let rope = Some(b.rope(interleaved_rope(
        config,
        stack.head_dim,
        usual.rotary_fraction,
    )?));
    let attention = DecoderAttention {
        dims: stack,
        projections: PROJECTIONS,
        norms: NORMS,
        norm_names: ["input_layernorm", "post_attention_layernorm"],
        rope,
        memory,
    };
    for layer in 0..stack.layers {
        let path = format!("{path}.layers.{layer}");
        x = attention.add(&mut b, &path, x, layer);
        let normed = NORMS.norm(&mut b, &format!("{path}.final_layernorm"), x);
        // The second half of the columns gates the first.
        let both = b.linear(&format!("{path}.mlp.fc1"), normed, 2 * stack.inner, true);
        let value = b.view(&format!("{path}.mlp.value"), both, 0, stack.inner);
        let gate = b.view(&format!("{path}.mlp.gate"), both, stack.inner, stack.inner);
        let inner = b.node(
            &format!("{path}.mlp.gated"),
            Gated(act),
            &[gate, value],
            stack.inner,
        );
        let out = b.linear(&format!("{path}.mlp.fc2"), inner, stack.hidden, true);
        x = b.add(&format!("{path}.mlp"), x, out);
    }
    let weight = match config.is_tied(usual.tied) {
        true => table,
        false => b.matrix("proj_out.weight", vocab, stack.hidden),
    };
    output_head(b, x, &format!("{path}.norm"), NORMS, weight)
}
