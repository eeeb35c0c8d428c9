//! Native runner for model developers: `cargo run --release -p jerboa --example run -- COMMAND`.
//! Every command has its options and its work in one file. To add one: write `command()` and
//! `run()`, and a line in `commands!`.

#[cfg(target_arch = "wasm32")]
fn main() {}

#[cfg(not(target_arch = "wasm32"))]
fn main() -> std::process::ExitCode {
    native::main()
}

#[cfg(not(target_arch = "wasm32"))]
mod audio_file;
#[cfg(not(target_arch = "wasm32"))]
mod bench;
#[cfg(not(target_arch = "wasm32"))]
mod generate;
#[cfg(not(target_arch = "wasm32"))]
mod image;
#[cfg(not(target_arch = "wasm32"))]
mod inspect;
#[cfg(not(target_arch = "wasm32"))]
mod logits;
#[cfg(not(target_arch = "wasm32"))]
mod open;
#[cfg(not(target_arch = "wasm32"))]
mod options;
#[cfg(not(target_arch = "wasm32"))]
mod out;
#[cfg(not(target_arch = "wasm32"))]
mod speak;
#[cfg(not(target_arch = "wasm32"))]
mod text;
#[cfg(not(target_arch = "wasm32"))]
mod train;
#[cfg(not(target_arch = "wasm32"))]
mod transcribe;
#[cfg(not(target_arch = "wasm32"))]
mod vectors;

#[cfg(not(target_arch = "wasm32"))]
mod native {
    use crate::options::{CliArgs, Result};
    use crate::{bench, generate, image, inspect, logits, speak, text, train, transcribe, vectors};
    use clap::Command;
    use pollster::block_on;
    use std::process::ExitCode;

    /// Table of commands: name, description, options, function.
    macro_rules! commands {
        ($($name:literal $about:literal: $command:path, $run:path;)*) => {
            /// Declares the command line.
            pub(super) fn line() -> Command {
                Command::new("run")
                    .about("Runs models on this machine's GPU, for model developers")
                    .version(env!("CARGO_PKG_VERSION"))
                    .arg_required_else_help(true)
                    .subcommand_required(true)
                    $(.subcommand($command(Command::new($name).about($about).arg_required_else_help(true))))*
            }

            async fn run(name: &str, given: &CliArgs) -> Result<()> {
                match name {
                    $($name => $run(given).await,)*
                    other => Err(format!("unknown command '{other}'. Run with --help to list the commands.")),
                }
            }
        };
    }

    commands! {
        "generate" "Continues text or answers a conversation": generate::command, generate::run;
        "embed" "Embeds texts and images": vectors::embed_command, vectors::embed;
        "rerank" "Scores texts against a query": vectors::rerank_command, vectors::rerank;
        "tokenize" "Prints the token ids of a text": text::tokenize_command, text::tokenize;
        "render-chat" "Renders a conversation with the chat template": text::render_command, text::render;
        "perplexity" "Computes the perplexity of a text": text::perplexity_command, text::perplexity;
        "logits" "Writes logits of token ids to a safetensors file: tensor `logits`, f32": logits::logits_command, logits::logits;
        "hidden" "Writes last hidden states of token ids: tensor `last_hidden_state`, f32": logits::hidden_command, logits::hidden;
        "trace" "Writes every named value of the graph to a safetensors file: f32, one row a token": logits::trace_command, logits::trace;
        "encode-image" "Writes image embeddings and pixels: tensors `image_embeds` and `pixel_values`, f32": image::command, image::run;
        "train" "Trains a LoRA adapter on text, conversations or pairs of texts": train::command, train::run;
        "transcribe" "Transcribes a WAV file": transcribe::command, transcribe::run;
        "encode-audio" "Writes the audio encoder's output: tensor `encoder_last_hidden_state`, f32": transcribe::encode_command, transcribe::encode;
        "vad" "Prints speech segments, found by Silero VAD or the VAD weights in MODEL": transcribe::vad_command, transcribe::vad;
        "speak" "Synthesizes speech from text, or decodes codec tokens, to a WAV file": speak::command, speak::run;
        "inspect" "Prints family, sizes and encodings, and whether the model is supported": inspect::inspect_command, inspect::inspect;
        "plan" "Prints the graph, dispatches of a decode step, and memory": inspect::plan_command, inspect::plan;
        "load-bench" "Measures load time by phase and peak memory": inspect::load_command, inspect::load;
        "make-sound" "Writes a random checkpoint of a speech model, for benchmarks": bench::make_command, bench::make;
        "bench" "Benchmarks a model or a random checkpoint; prints the bench page's JSON": bench::command, bench::run;
    }

    pub fn main() -> ExitCode {
        let matches = line().get_matches();
        let Some((name, given)) = matches.subcommand() else {
            return ExitCode::FAILURE;
        };
        match block_on(run(name, &CliArgs(given.clone()))) {
            Ok(()) => ExitCode::SUCCESS,
            Err(message) => {
                eprintln!("error: {message}");
                ExitCode::FAILURE
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use clap::error::ErrorKind;

        fn parse(words: &str) -> std::result::Result<clap::ArgMatches, clap::Error> {
            line().try_get_matches_from(std::iter::once("run").chain(words.split_whitespace()))
        }

        #[test]
        fn unknown_names_are_refused_with_a_suggestion() {
            line().debug_assert();
            for (words, kind, told) in [
                (
                    "generate m --prompt x --nonsense 5",
                    ErrorKind::UnknownArgument,
                    "--nonsense",
                ),
                (
                    "generate m --prompt x --max-token 5",
                    ErrorKind::UnknownArgument,
                    "--max-tokens",
                ),
                (
                    "generate m --prompt x --features nonsense",
                    ErrorKind::InvalidValue,
                    "no-subgroups",
                ),
                (
                    "generate m --prompt --json",
                    ErrorKind::InvalidValue,
                    "--prompt <TEXT>",
                ),
                ("generate m", ErrorKind::MissingRequiredArgument, "--prompt"),
                (
                    "generate --prompt x",
                    ErrorKind::MissingRequiredArgument,
                    "MODEL",
                ),
                (
                    "generate m --prompt x --kv f8",
                    ErrorKind::InvalidValue,
                    "packed",
                ),
                (
                    "generate m --prompt x --max-tokens many",
                    ErrorKind::ValueValidation,
                    "many",
                ),
                ("genrate m", ErrorKind::InvalidSubcommand, "generate"),
                (
                    "bench --reps 1",
                    ErrorKind::MissingRequiredArgument,
                    "--shape",
                ),
            ] {
                let error = parse(words).expect_err(words);
                assert_eq!(error.kind(), kind, "{words}: {error}");
                assert!(error.to_string().contains(told), "{words}: {error}");
            }
        }

        #[test]
        fn each_command_has_its_own_help() {
            for command in line().get_subcommands() {
                let help = parse(&format!("{} --help", command.get_name())).expect_err("a help");
                assert_eq!(help.kind(), ErrorKind::DisplayHelp);
                assert!(help.to_string().contains("Usage: run "), "{help}");
            }
        }

        #[test]
        fn models_are_named_by_argument_option_or_shape() {
            for words in [
                "inspect org/name",
                "inspect --model org/name",
                "bench --shape tiny --prompt 16,32 --features no-f16,no-subgroups",
                "plan --shape tiny --position 256,1152 --dispatch-us 4 --read-gbs 100",
            ] {
                assert!(parse(words).is_ok(), "{words}");
            }
            assert!(parse("inspect a --model b").is_err());
        }
    }
}
