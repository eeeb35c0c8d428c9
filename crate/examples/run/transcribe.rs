//! The commands `transcribe`, `encode-audio` and `vad`, and decoder logits after audio.

use crate::open::{with_optional_model, with_required_model};
use crate::options::{CliArgs, Result, flag, format_error, list, parsed, request_flags, value};
use crate::{audio_file, out};
use clap::{Arg, Command, value_parser};
use jerboa::audio::vad::{Vad, VadThresholds, speech_segments};
use jerboa::hub::AbortFlag;
use jerboa::task::{TRANSCRIBE_OPTIONS, Task, TaskModel, TranscribeRequest, Transcriber};
use serde_json::{Value, json};
use std::time::Instant;

/// Weights of Silero VAD, as served with the demo page.
const SILERO_VAD_WEIGHTS: &[u8] =
    include_bytes!("../../../www/public/models/silero-vad/model.safetensors");

fn audio() -> Arg {
    value(
        "audio",
        "FILE.wav",
        "Audio file: PCM or float samples, any sample rate",
    )
}

pub fn command(command: Command) -> Command {
    let flags = [
        "language",
        "translate",
        "timestamps",
        "prompt",
        "temperatures",
        "beams",
        "max_tokens",
        "seed",
        "vad",
    ];
    with_required_model(command)
        .arg(audio().required(true))
        .args(request_flags(TRANSCRIBE_OPTIONS, &flags))
        .args([
            list(
                "ids",
                "ID,…",
                value_parser!(u32),
                "Decoder prompt tokens, instead of those for language and task",
            ),
            parsed(
                "format",
                "HOW",
                ["text", "json", "srt", "vtt", "verbose"],
                "Output format",
            )
            .default_value("text"),
            flag("json", "Print text, ids and segments as JSON"),
            flag("times", "Print the time of encoding and decoding"),
        ])
}

async fn transcriber(given: &CliArgs) -> Result<Transcriber> {
    let TaskModel::Transcribe(mut model) = given.any_model(Task::Transcribe).await? else {
        return Err("this model cannot transcribe audio. Use a speech-to-text model.".into());
    };
    model.vad = Some(std::rc::Rc::new(
        Vad::new(SILERO_VAD_WEIGHTS).map_err(format_error)?,
    ));
    Ok(*model)
}

fn request(given: &CliArgs) -> Result<TranscribeRequest> {
    let mut request = given.request(TRANSCRIBE_OPTIONS);
    request.insert(
        "logprobs".into(),
        json!(given.text("format").as_deref() == Some("verbose")),
    );
    if given.is_set("ids") {
        request.insert("ids".into(), json!(given.values::<u32>("ids")));
    }
    let request = Value::from(request);
    TranscribeRequest::from_json(&request.to_string()).map_err(format_error)
}

pub async fn run(given: &CliArgs) -> Result<()> {
    let request = request(given)?;
    let samples = audio_file::read(&given.require::<String>("audio")?)?;

    let mut model = transcriber(given).await?;
    let start = Instant::now();
    let made = model
        .transcribe(&samples, &request, &AbortFlag::new(), |_| {})
        .await
        .map_err(format_error)?;
    let seconds = start.elapsed().as_secs_f64();
    let format = if given.is_set("json") {
        "json".into()
    } else {
        given.require::<String>("format")?
    };
    match format.as_str() {
        "text" => out::print_line(made.text()),
        "srt" => out::print_text(made.srt()),
        "vtt" => out::print_text(made.vtt()),
        "verbose" => out::print_line(made.to_verbose_json()),
        _ => {
            let segment = |s: &jerboa::audio::subtitles::TranscriptSegment| json!({ "start": s.start, "end": s.end, "text": s.text });
            let ids: Vec<u32> = made.segments.iter().flat_map(|s| s.ids.clone()).collect();
            let segments: Vec<Value> = made.segments.iter().map(segment).collect();
            let all = json!({ "text": made.text(), "ids": ids, "segments": segments, "language": made.language });
            out::print_line(all);
        }
    }
    eprintln!(
        "{:.2} s of audio in {seconds:.2} s, {:.1} times real time",
        made.duration,
        made.duration / seconds
    );
    if given.is_set("times") {
        measure_times(&mut model, &samples).await?;
    }
    Ok(())
}

/// Times encoding and decoding separately, over one window.
async fn measure_times(model: &mut Transcriber, samples: &[f32]) -> Result<()> {
    let window = &samples[..samples.len().min(model.encoder.frontend.max_samples())];
    let seconds = window.len() as f64 / f64::from(jerboa::audio::SAMPLE_RATE);
    let measured = model.measure(window, 64).await.map_err(format_error)?;
    out::print_line(json!({
        "seconds": seconds, "encode_ms": measured.encode_ms, "token_ms": measured.token_ms,
        "encode_factor": seconds * 1e3 / measured.encode_ms,
        // Fast speech has about four tokens a second.
        "decode_factor": 1e3 / (4.0 * measured.token_ms),
    }));
    Ok(())
}

pub fn encode_command(command: Command) -> Command {
    with_required_model(command).args([
        audio().required(true),
        value("out", "FILE", "Output file").required(true),
    ])
}

pub async fn encode(given: &CliArgs) -> Result<()> {
    let samples = audio_file::read(&given.require::<String>("audio")?)?;
    let (values, rows) = transcriber(given)
        .await?
        .encode(&samples)
        .await
        .map_err(format_error)?;
    crate::logits::save(given, "encoder_last_hidden_state", values, rows, rows)
}

/// Adds the audio option to a command with token ids.
pub fn with_audio(command: Command) -> Command {
    command.arg(audio().help("Audio that precedes the ids, for speech-to-text models"))
}

/// Logits of the ids after the audio of --audio; `None` without --audio.
pub async fn logits(given: &CliArgs) -> Result<Option<Vec<f32>>> {
    let Some(file) = given.text("audio") else {
        return Ok(None);
    };
    let samples = audio_file::read(&file)?;
    let values = transcriber(given)
        .await?
        .logits(&samples, &given.values::<u32>("ids"))
        .await
        .map_err(format_error)?;
    Ok(Some(values))
}

pub fn vad_command(command: Command) -> Command {
    with_optional_model(command)
        .arg(audio().required(true))
        .args([
            parsed(
                "threshold",
                "P",
                value_parser!(f32),
                "Minimum speech probability",
            )
            .default_value("0.5"),
            flag("json", "Print probabilities and segments as JSON"),
        ])
}

pub async fn vad(given: &CliArgs) -> Result<()> {
    let samples = audio_file::read(&given.require::<String>("audio")?)?;
    let name = given.model_name();
    let weights = match name.as_str() {
        "" => SILERO_VAD_WEIGHTS.to_vec(),
        file => {
            let path = std::path::Path::new(file);
            let path = if path.is_dir() {
                path.join("model.safetensors")
            } else {
                path.to_path_buf()
            };
            std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?
        }
    };
    let probabilities = Vad::new(&weights)
        .map_err(format_error)?
        .probabilities(&samples);
    let enter = given.require::<f32>("threshold")?;
    let thresholds = VadThresholds {
        start_probability: enter,
        end_probability: (enter - 0.15).max(0.01),
        ..VadThresholds::default()
    };
    let rate = f64::from(jerboa::audio::SAMPLE_RATE);
    let found: Vec<(f64, f64)> = speech_segments(&probabilities, samples.len(), thresholds)
        .iter()
        .map(|s| (s.start as f64 / rate, s.end as f64 / rate))
        .collect();
    if given.is_set("json") {
        let segments: Vec<Value> = found
            .iter()
            .map(|(start, end)| json!({ "start": start, "end": end }))
            .collect();
        out::print_line(json!({ "segments": segments, "probabilities": probabilities }));
    } else {
        found
            .iter()
            .for_each(|(start, end)| out::print_line(format_args!("{start:.2} {end:.2}")));
    }
    Ok(())
}
