//! The native runner, for people who work on models: `cargo run --release -p jerboa --example run -- COMMAND`. Knows which commands there are; each has its options and
//! its work in one place. One more is a `command()`, a `run()` and a line in `commands!`.

#[cfg(target_arch = "wasm32")]
fn main() {}

#[cfg(not(target_arch = "wasm32"))]
fn main() -> std::process::ExitCode {
    native::main()
}

#[cfg(not(target_arch = "wasm32"))]
mod bench;
#[cfg(not(target_arch = "wasm32"))]
mod generate;
#[cfg(not(target_arch = "wasm32"))]
mod hear;
#[cfg(not(target_arch = "wasm32"))]
mod look;
#[cfg(not(target_arch = "wasm32"))]
mod open;
#[cfg(not(target_arch = "wasm32"))]
mod options;
#[cfg(not(target_arch = "wasm32"))]
mod out;
#[cfg(not(target_arch = "wasm32"))]
mod see;
#[cfg(not(target_arch = "wasm32"))]
mod sound;
#[cfg(not(target_arch = "wasm32"))]
mod speak;
#[cfg(not(target_arch = "wasm32"))]
mod states;
#[cfg(not(target_arch = "wasm32"))]
mod text;
#[cfg(not(target_arch = "wasm32"))]
mod vectors;

#[cfg(not(target_arch = "wasm32"))]
mod native {
    use crate::options::{Given, Result};
    use crate::{bench, generate, hear, look, see, speak, states, text, vectors};
    use clap::Command;
    use pollster::block_on;
    use std::process::ExitCode;

    /// Name, one sentence, what it takes and what it does, of each command.
    macro_rules! commands {
        ($($name:literal $about:literal: $command:path, $run:path;)*) => {
            /// The command line.
            pub(super) fn line() -> Command {
                Command::new("run")
                    .about("Runs models on this machine's GPU, for people who work on them")
                    .version(env!("CARGO_PKG_VERSION"))
                    .arg_required_else_help(true)
                    .subcommand_required(true)
                    $(.subcommand($command(Command::new($name).about($about).arg_required_else_help(true))))*
            }

            async fn run(name: &str, given: &Given) -> Result<()> {
                match name {
                    $($name => $run(given).await,)*
                    other => Err(format!("there is no command '{other}'")),
                }
            }
        };
    }

    commands! {
        "generate" "Continues a text or answers a conversation": generate::command, generate::run;
        "embed" "Texts to vectors": vectors::embed_command, vectors::embed;
        "rerank" "Scores texts for a query": vectors::rerank_command, vectors::rerank;
        "tokenize" "The token ids of a text": text::tokenize_command, text::tokenize;
        "render-chat" "The text that the chat template makes of a conversation": text::render_command, text::render;
        "perplexity" "How well the model foretells a text": text::perplexity_command, text::perplexity;
        "logits" "Writes the logits of token ids to a safetensors file: tensor `logits`, f32": states::logits_command, states::logits;
        "hidden" "Writes the last hidden states of token ids likewise: tensor `last_hidden_state`, f32": states::hidden_command, states::hidden;
        "trace" "Writes every named value of the graph for token ids to a safetensors file, a row for each token, f32": states::trace_command, states::trace;
        "encode-image" "Writes the rows that the language model gets for pictures: tensors `image_embeds` and `pixel_values`, f32": see::command, see::run;
        "transcribe" "Writes down what is said in a WAV file": hear::command, hear::run;
        "encode-audio" "Writes the encoder's rows for a sound: tensor `encoder_last_hidden_state`, f32": hear::encode_command, hear::encode;
        "vad" "When somebody speaks, by Silero VAD or the weights of MODEL": hear::vad_command, hear::vad;
        "speak" "Writes the sound that a codec's decoder makes of codes": speak::command, speak::run;
        "inspect" "Family, sizes, encoding by tensor; what would run and what not": look::inspect_command, look::inspect;
        "plan" "The graph, dispatches of a decode step, bytes": look::plan_command, look::plan;
        "load-bench" "Where the time of a load goes, and its peak memory": look::load_command, look::load;
        "make-sound" "Writes a random checkpoint of a model that hears or speaks, to be measured": bench::make_command, bench::make;
        "bench" "Speed in the bench page's JSON, of a model or of a random checkpoint of one of its shapes": bench::command, bench::run;
    }

    pub fn main() -> ExitCode {
        let matches = line().get_matches();
        let Some((name, given)) = matches.subcommand() else { return ExitCode::FAILURE };
        match block_on(run(name, &Given(given.clone()))) {
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
        fn what_is_not_known_is_refused_with_a_suggestion() {
            line().debug_assert();
            for (words, kind, told) in [
                ("generate m --prompt x --nonsense 5", ErrorKind::UnknownArgument, "--nonsense"),
                ("generate m --prompt x --max-token 5", ErrorKind::UnknownArgument, "--max-tokens"),
                ("generate m --prompt x --features nonsense", ErrorKind::InvalidValue, "no-subgroups"),
                ("generate m --prompt --json", ErrorKind::InvalidValue, "--prompt <TEXT>"),
                ("generate m", ErrorKind::MissingRequiredArgument, "--prompt"),
                ("generate --prompt x", ErrorKind::MissingRequiredArgument, "MODEL"),
                ("generate m --prompt x --kv f8", ErrorKind::InvalidValue, "packed"),
                ("generate m --prompt x --max-tokens many", ErrorKind::ValueValidation, "many"),
                ("genrate m", ErrorKind::InvalidSubcommand, "generate"),
                ("bench --reps 1", ErrorKind::MissingRequiredArgument, "--shape"),
            ] {
                let error = parse(words).expect_err(words);
                assert_eq!(error.kind(), kind, "{words}: {error}");
                assert!(error.to_string().contains(told), "{words}: {error}");
            }
        }

        #[test]
        fn each_command_has_a_help_of_its_own() {
            for command in line().get_subcommands() {
                let help = parse(&format!("{} --help", command.get_name())).expect_err("a help");
                assert_eq!(help.kind(), ErrorKind::DisplayHelp);
                assert!(help.to_string().contains("Usage: run "), "{help}");
            }
        }

        #[test]
        fn a_model_is_named_in_either_way_and_a_shape_stands_for_one() {
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
