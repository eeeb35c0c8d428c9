//! The `speak` command: decodes codec tokens to audio, or synthesizes text with a speech model and
//! its codec.

use crate::open::with_required_model;
use crate::options::{CliArgs, Result, format_error, list, request_flags, value};
use crate::out;
use clap::{ArgGroup, Command, value_parser};
use jerboa::audio::{AudioClip, wav};
use jerboa::hub::{AbortFlag, Progress};
use jerboa::sample::SAMPLING_OPTIONS;
use jerboa::task::{AudioCodec, SPEAK_OPTIONS, SpeakRequest, SpeechSynthesizer};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use std::time::Instant;

pub fn command(command: Command) -> Command {
    with_required_model(command)
        .args([
            value(
                "codes",
                "FILE",
                "Safetensors file with codec tokens: tensor `codes`, [groups, frames]; MODEL is the codec",
            ),
            value("text", "TEXT", "Text to synthesize; MODEL is the speech model"),
            list("ids", "ID,…", value_parser!(u32), "Prompt token ids, instead of --text"),
        ])
        .group(ArgGroup::new("what").args(["codes", "text", "ids"]).required(true))
        .args([
            value("codec", "MODEL", "Codec model for --text or --ids"),
            value("speaker", "FILE", "Safetensors file with a speaker embedding: tensor `speaker`"),
            value("out", "FILE.wav", "Output file").required(true),
        ])
        .args(request_flags(SPEAK_OPTIONS, &["voice", "max_tokens", "grammar"]))
        .args(request_flags(SAMPLING_OPTIONS, &["temperature", "top_p", "repetition_penalty", "seed"]))
}

async fn synthesize(given: &CliArgs) -> Result<()> {
    let source = given.source().await?;
    let codec = given
        .source_of(&given.require::<String>("codec")?, Progress::silent())
        .await?;
    let gpu = given.gpu().await?;
    let options = given.run_options()?;

    let mut model = SpeechSynthesizer::load(gpu, &source, &codec, &given.model_name(), options)
        .await
        .map_err(format_error)?;
    let mut request = given.request(SPEAK_OPTIONS);
    request.extend(given.request(SAMPLING_OPTIONS));
    request.insert(
        "input".into(),
        json!(given.text("text").unwrap_or_default()),
    );
    if given.is_set("ids") {
        request.insert("ids".into(), json!(given.values::<u32>("ids")));
    }
    if let Some(file) = given.text("speaker") {
        let bytes = std::fs::read(&file).map_err(|e| format!("{file}: {e}"))?;
        let all = SafeTensors::deserialize(&bytes).map_err(|e| format!("{file}: {e}"))?;
        let tensor = all.tensor("speaker").map_err(|e| format!("{file}: {e}"))?;
        let speaker = bytemuck::pod_collect_to_vec::<u8, f32>(tensor.data());
        request.insert("speaker".into(), json!(speaker));
    }
    let request = Value::from(request);
    let request = SpeakRequest::from_json(&request.to_string()).map_err(format_error)?;
    let mut samples = Vec::new();
    let made = model
        .speak(&request, &AbortFlag::new(), |piece| {
            samples.extend_from_slice(piece);
        })
        .await
        .map_err(format_error)?;
    write(
        given,
        &AudioClip {
            rate: model.codec.rate,
            samples,
        },
    )?;
    out::print_line(json!({
        "frames": made.frames, "dropped": made.dropped, "seconds": made.seconds, "finish": made.finish_reason,
        "first_ms": made.first_ms, "total_ms": made.total_ms, "factor": made.seconds * 1e3 / made.total_ms,
    }));
    Ok(())
}

fn write(given: &CliArgs, clip: &AudioClip) -> Result<()> {
    let out: String = given.require("out")?;
    std::fs::write(&out, wav::write(clip)).map_err(|e| format!("{out}: {e}"))
}

/// Reads codec tokens in frame order from a safetensors file.
fn read_codes(file: &str, groups: usize) -> Result<Vec<u32>> {
    let bytes = std::fs::read(file).map_err(|e| format!("{file}: {e}"))?;
    let told = |reason: String| format!("{file}: {reason}");
    let all = SafeTensors::deserialize(&bytes).map_err(|e| told(e.to_string()))?;
    let tensor = all.tensor("codes").map_err(|e| told(e.to_string()))?;
    // Accept a batch dimension of one.
    let shape: Vec<usize> = tensor
        .shape()
        .iter()
        .copied()
        .skip_while(|n| *n == 1 && tensor.shape().len() > 2)
        .collect();
    let [found, frames] = shape[..] else {
        return Err(told(format!(
            "'codes' has shape {shape:?}, expected [groups, frames]"
        )));
    };
    if found != groups {
        return Err(told(format!(
            "'codes' has {found} groups, the codec requires {groups}"
        )));
    }
    let numbers: Vec<i64> = match tensor.dtype() {
        Dtype::I64 => bytemuck::pod_collect_to_vec(tensor.data()),
        Dtype::I32 => bytemuck::pod_collect_to_vec::<u8, i32>(tensor.data())
            .into_iter()
            .map(i64::from)
            .collect(),
        other => return Err(told(format!("'codes' has type {other:?}. Use I32 or I64."))),
    };

    (0..frames)
        .flat_map(|frame| (0..groups).map(move |group| group * frames + frame))
        .map(|at: usize| {
            u32::try_from(numbers[at])
                .map_err(|_| told(format!("{} is not a valid codec token", numbers[at])))
        })
        .collect()
}

pub async fn run(given: &CliArgs) -> Result<()> {
    if !given.is_set("codes") {
        return synthesize(given).await;
    }
    let source = given.source().await?;
    let gpu = given.gpu().await?;

    let mut codec = AudioCodec::load(&gpu, &source, given.run_options()?)
        .await
        .map_err(format_error)?;
    let codes = read_codes(&given.require::<String>("codes")?, codec.groups)?;
    let start = Instant::now();
    let samples = codec.decode(&gpu, &codes, 0).await.map_err(format_error)?;
    let clip = AudioClip {
        rate: codec.rate,
        samples,
    };
    let seconds = clip.seconds();
    let took = start.elapsed().as_secs_f64();

    write(given, &clip)?;
    eprintln!(
        "{seconds:.2} s of audio in {took:.2} s, {:.1} times real time",
        seconds / took
    );
    Ok(())
}
