//! Whisper and distil-whisper, from log-mel frames to logits. Reference: transformers
//! `modeling_whisper.py`.

use super::blocks::cross_attention::{
    CrossNorms, CrossProjections, DecoderAttention, LayerDims, cross_kv_graph, cross_kv_inputs,
    encoder_self_attention,
};
use super::config::Config;
use super::encoder::dense;
use super::speech::{
    AudioFrontend, SpeechGraphs, conv, output_head, token_embeddings, unsupported,
};
use crate::Result;
use crate::ir::{Activation, AddPositionEmbedding, Dim, Graph, GraphBuilder, Im2Col, ValueId};

const NORMS: CrossNorms = CrossNorms {
    gain: "weight",
    bias: true,
    offset: 0.0,
};
const PROJECTIONS: CrossProjections = CrossProjections {
    bias: true,
    out: "out_proj",
};
const UNLIMITED: [usize; 2] = [usize::MAX, usize::MAX];

/// Builds the graphs of a checkpoint. The encoder's input "features" `[frames, num_mel_bins]` has a
/// row for each 10 ms.
///
/// # Errors
/// `Config` or `UnsupportedOption`.
pub fn whisper(config: Config<'_>) -> Result<SpeechGraphs> {
    if config.flag_or("scale_embedding", false) {
        return Err(unsupported(
            config,
            "scale_embedding = true",
            "The only supported value is false.",
        ));
    }
    let act = config.activation("activation_function", "gelu")?;
    let encoder = LayerDims::read(
        config,
        [
            "d_model",
            "encoder_ffn_dim",
            "encoder_layers",
            "encoder_attention_heads",
        ],
    )?;
    let decoder = LayerDims::read(
        config,
        [
            "d_model",
            "decoder_ffn_dim",
            "decoder_layers",
            "decoder_attention_heads",
        ],
    )?;
    let most = config.count("max_source_positions")?;
    let states = encoder.hidden;
    let plain = |_: &mut GraphBuilder, x: ValueId| x;
    Ok(SpeechGraphs {
        encoder: encode(config, &encoder, most, act)?,
        keys: cross_kv_graph("whisper keys", "k_proj", false, states, &decoder, &plain)?,
        values: cross_kv_graph("whisper values", "v_proj", true, states, &decoder, &plain)?,
        decoder: decode(config, &decoder, most, act)?,
        state_cols: states,
        frontend: AudioFrontend::Mel {
            mels: config.count("num_mel_bins")?,
            frames: 2 * most,
        },
        max_states: most,
    })
}

/// Adds `y = x + fc2(act(fc1(norm(x))))`.
fn mlp(
    b: &mut GraphBuilder,
    path: &str,
    x: ValueId,
    stack: &LayerDims,
    act: Activation,
) -> ValueId {
    let normed = NORMS.norm(b, &format!("{path}.final_layer_norm"), x);
    let inner = dense(b, &format!("{path}.fc1"), normed, stack.inner, true, act);
    let out = b.linear(&format!("{path}.fc2"), inner, stack.hidden, true);
    b.add(&format!("{path}.mlp"), x, out)
}

fn encode(config: Config<'_>, stack: &LayerDims, most: usize, act: Activation) -> Result<Graph> {
    let mut b = GraphBuilder::new("whisper encoder");
    let path = "model.encoder";
    let features = b.input("features", Dim::TOKENS, config.count("num_mel_bins")?);
    let windows = |stride| Im2Col {
        padding: [1, 1],
        ..Im2Col::new(3, stride)
    };
    // The convolutions use GELU regardless of `activation_function`.
    let gelu = Activation::Gelu;
    let x = conv(
        &mut b,
        &format!("{path}.conv1"),
        features,
        windows(1),
        stack.hidden,
        true,
        gelu,
    );
    let x = conv(
        &mut b,
        &format!("{path}.conv2"),
        x,
        windows(2),
        stack.hidden,
        true,
        gelu,
    );
    let mut x = positions(&mut b, path, x, most);
    for layer in 0..stack.layers {
        let path = format!("{path}.layers.{layer}");
        let normed = NORMS.norm(&mut b, &format!("{path}.self_attn_layer_norm"), x);
        let seen = encoder_self_attention(
            &mut b,
            &format!("{path}.self_attn"),
            normed,
            stack,
            PROJECTIONS,
            UNLIMITED,
            None,
        );
        x = b.add(&format!("{path}.attended"), x, seen);
        x = mlp(&mut b, &path, x, stack, act);
    }
    let out = NORMS.norm(&mut b, &format!("{path}.layer_norm"), x);
    b.finish(out, None)
}

fn decode(config: Config<'_>, stack: &LayerDims, most: usize, act: Activation) -> Result<Graph> {
    let mut b = GraphBuilder::new("whisper");
    let path = "model.decoder";
    let memory = cross_kv_inputs(&mut b, stack, most);
    let vocab = config.count("vocab_size")?;
    let (table, x) = token_embeddings(&mut b, &format!("{path}.embed_tokens"), vocab, stack.hidden);
    let mut x = positions(&mut b, path, x, config.count("max_target_positions")?);
    let attention = DecoderAttention {
        dims: stack,
        projections: PROJECTIONS,
        norms: NORMS,
        norm_names: ["self_attn_layer_norm", "encoder_attn_layer_norm"],
        rope: None,
        memory,
    };
    for layer in 0..stack.layers {
        let path = format!("{path}.layers.{layer}");
        x = attention.add(&mut b, &path, x, layer);
        x = mlp(&mut b, &path, x, stack, act);
    }
    let weight = match config.is_tied(true) {
        true => table,
        false => b.matrix("proj_out.weight", vocab, stack.hidden),
    };
    output_head(b, x, &format!("{path}.layer_norm"), NORMS, weight)
}

/// Adds learned or stored position embeddings.
fn positions(b: &mut GraphBuilder, path: &str, x: ValueId, most: usize) -> ValueId {
    let cols = b.cols(x);
    let table = b.vector(&format!("{path}.embed_positions.weight"), most * cols);
    b.node(
        &format!("{path}.positions"),
        AddPositionEmbedding { table },
        &[x],
        cols,
    )
}
