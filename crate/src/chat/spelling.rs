//! How each format writes calls, for a grammar that limits answers to them.
//!
//! A spelling is plain text; where the vocabulary has one of the format's markers as a token, the
//! token stands for it.

use super::detect::CallFormat;
use super::{AnswerFormat, harmony};
use serde_json::{Value, json};

/// Stands for the position of a call.
const POSITION: char = '\u{1}';
/// Stands for nine letters and digits.
const NINE: char = '\u{2}';
/// Stands for `true` or `false`.
const TRUTH: char = '\u{3}';

/// How arguments are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notation {
    Json,
    /// `key=value, …` with literals of Python.
    Python,
    /// `key:value,…` with this text around strings.
    Delimited(&'static str),
    /// Tags around keys and values.
    Tags(&'static Tags),
}

/// Tags around keys and values.
#[derive(Debug, PartialEq, Eq)]
struct Tags {
    key_open: &'static str,
    key_close: &'static str,
    value_close: &'static str,
    /// Texts that end a string.
    string_ends: &'static [&'static str],
}

/// The texts of a format.
#[derive(Debug, Clone, Copy)]
struct Spelling {
    notation: Notation,
    open: &'static str,
    head: &'static str,
    middle: &'static str,
    tail: &'static str,
    between: &'static str,
    close: &'static str,
    is_single: bool,
}

const EMPTY: Spelling = Spelling {
    notation: Notation::Json,
    open: "",
    head: "",
    middle: "",
    tail: "",
    between: "",
    close: "",
    is_single: false,
};

const JSON: Spelling = Spelling {
    head: "{\"name\": \"",
    middle: "\", \"arguments\": ",
    tail: "}",
    between: ", ",
    ..EMPTY
};

const DSML: Spelling = Spelling {
    notation: Notation::Tags(&DSML_TAGS),
    open: "<｜DSML｜function_calls>\n",
    head: "<｜DSML｜invoke name=\"",
    middle: "\">\n",
    tail: "</｜DSML｜invoke>\n",
    close: "</｜DSML｜function_calls>",
    ..EMPTY
};

const XML_TAGS: Tags = Tags {
    key_open: "<parameter=",
    key_close: ">\n",
    value_close: "\n</parameter>\n",
    string_ends: &["</parameter>", "\n<parameter=", "\n</function>"],
};

const SEED_TAGS: Tags = Tags {
    key_close: ">",
    value_close: "</parameter>\n",
    ..XML_TAGS
};

const INVOKE_TAGS: Tags = Tags {
    key_open: "<parameter name=\"",
    key_close: "\">",
    value_close: "</parameter>\n",
    string_ends: &["</parameter>"],
};

const MINICPM_TAGS: Tags = Tags {
    key_open: "<param name=\"",
    key_close: "\">",
    value_close: "</param>",
    string_ends: &["</param>"],
};

const DSML_TAGS: Tags = Tags {
    key_open: "<｜DSML｜parameter name=\"",
    key_close: "\" string=\"\u{3}\">",
    value_close: "</｜DSML｜parameter>\n",
    string_ends: &["</｜DSML｜parameter>"],
};

const GCML_TAGS: Tags = Tags {
    key_open: "<｜GCML｜parameter name=\"",
    value_close: "</｜GCML｜parameter>\n",
    string_ends: &["</｜GCML｜parameter>"],
    ..DSML_TAGS
};

const STEP_TAGS: Tags = Tags {
    key_open: "<steptml:parameter name=\"",
    key_close: "\">",
    value_close: "</steptml:parameter>\n",
    string_ends: &["</steptml:parameter>"],
};

/// Tells that parameters between `<function=NAME>` and `</function>` are JSON: Functionary 3.1.
const JSON_PARAMETERS: &str = "parameters => a JSON dict";

const GLM_TAGS: Tags = Tags {
    key_open: "<arg_key>",
    key_close: "</arg_key>\n<arg_value>",
    value_close: "</arg_value>\n",
    string_ends: &["</arg_value>"],
};

/// GLM 4.7.
const GLM_COMPACT_TAGS: Tags = Tags {
    key_close: "</arg_key><arg_value>",
    value_close: "</arg_value>",
    ..GLM_TAGS
};

/// Whether a template writes calls and their tags in one line, and never otherwise.
fn is_in_one_line(template: &str) -> bool {
    let has = |text| template.contains(text);
    has("<tool_call>{") && !has("<tool_call>\n{") && !has("<tool_call>\\n{")
}

/// The spelling of a template's format.
fn spelling(format: CallFormat, template: &str) -> &'static Spelling {
    match format {
        // EXAONE 4.
        CallFormat::Hermes if is_in_one_line(template) => &Spelling {
            head: "<tool_call>{\"name\": \"",
            tail: "}</tool_call>",
            between: "\n",
            ..JSON
        },
        CallFormat::Hermes => &Spelling {
            head: "<tool_call>\n{\"name\": \"",
            tail: "}\n</tool_call>",
            between: "\n",
            ..JSON
        },
        CallFormat::FunctionXml if template.contains(JSON_PARAMETERS) => &Spelling {
            head: "<function=",
            middle: ">",
            tail: "</function>",
            ..EMPTY
        },
        CallFormat::FunctionXml => &Spelling {
            notation: Notation::Tags(&XML_TAGS),
            head: "<tool_call>\n<function=",
            middle: ">\n",
            tail: "</function>\n</tool_call>",
            between: "\n",
            ..EMPTY
        },
        CallFormat::Llama => &Spelling {
            middle: "\", \"parameters\": ",
            between: "; ",
            ..JSON
        },
        CallFormat::Mistral if template.contains("[CALL_ID]") => &Spelling {
            head: "[TOOL_CALLS]",
            middle: "[CALL_ID]\u{2}[ARGS]",
            ..EMPTY
        },
        CallFormat::Mistral if template.contains("[ARGS]") => &Spelling {
            head: "[TOOL_CALLS]",
            middle: "[ARGS]",
            ..EMPTY
        },
        CallFormat::Mistral => &Spelling {
            open: "[TOOL_CALLS][",
            close: "]",
            ..JSON
        },
        CallFormat::Lfm2 => &Spelling {
            notation: Notation::Python,
            open: "<|tool_call_start|>[",
            middle: "(",
            tail: ")",
            between: ", ",
            close: "]<|tool_call_end|>",
            ..EMPTY
        },
        CallFormat::Granite => &Spelling {
            open: "<|tool_call|>[",
            close: "]",
            ..JSON
        },
        CallFormat::Phi4 => &Spelling {
            open: "<|tool_call|>[",
            close: "]<|/tool_call|>",
            ..JSON
        },
        CallFormat::Nemotron => &Spelling {
            open: "<TOOLCALL>[",
            close: "]</TOOLCALL>",
            ..JSON
        },
        CallFormat::Harmony => &Spelling {
            head: "<|channel|>commentary to=functions.",
            middle: " <|constrain|>json<|message|>",
            // A call ends the answer.
            is_single: true,
            ..EMPTY
        },
        CallFormat::Gemma4 => &Spelling {
            notation: Notation::Delimited("<|\"|>"),
            head: "<|tool_call>call:",
            middle: "{",
            tail: "}<tool_call|>",
            ..EMPTY
        },
        CallFormat::FunctionGemma => &Spelling {
            notation: Notation::Delimited("<escape>"),
            head: "<start_function_call>call:",
            middle: "{",
            tail: "}<end_function_call>",
            ..EMPTY
        },
        CallFormat::Glm if template.contains("<tool_call>{function-name}<arg_key>") => &Spelling {
            notation: Notation::Tags(&GLM_COMPACT_TAGS),
            head: "<tool_call>",
            tail: "</tool_call>",
            ..EMPTY
        },
        CallFormat::Glm => &Spelling {
            notation: Notation::Tags(&GLM_TAGS),
            head: "<tool_call>",
            middle: "\n",
            tail: "</tool_call>",
            between: "\n",
            ..EMPTY
        },
        CallFormat::DeepSeek if template.contains("```json") => &Spelling {
            open: "<｜tool▁calls▁begin｜>",
            head: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            middle: "\n```json\n",
            tail: "\n```<｜tool▁call▁end｜>",
            between: "\n",
            close: "<｜tool▁calls▁end｜>",
            ..EMPTY
        },
        CallFormat::DeepSeek => &Spelling {
            open: "<｜tool▁calls▁begin｜>",
            head: "<｜tool▁call▁begin｜>",
            middle: "<｜tool▁sep｜>",
            tail: "<｜tool▁call▁end｜>",
            close: "<｜tool▁calls▁end｜>",
            ..EMPTY
        },
        CallFormat::CommandR => &Spelling {
            open: "Action: ```json\n[\n",
            head: "    {\n        \"tool_name\": \"",
            middle: "\",\n        \"parameters\": ",
            tail: "\n    }",
            between: ",\n",
            close: "\n]```",
            ..JSON
        },
        CallFormat::CommandR7b => &Spelling {
            open: "<|START_ACTION|>[\n",
            head: "    {\"tool_call_id\": \"\u{1}\", \"tool_name\": \"",
            middle: "\", \"parameters\": ",
            between: ",\n",
            close: "\n]<|END_ACTION|>",
            ..JSON
        },
        CallFormat::KimiK2 => &Spelling {
            open: "<|tool_calls_section_begin|>",
            head: "<|tool_call_begin|>functions.",
            middle: ":\u{1}<|tool_call_argument_begin|>",
            tail: "<|tool_call_end|>",
            close: "<|tool_calls_section_end|>",
            ..EMPTY
        },
        CallFormat::ToolCalls => &Spelling {
            open: "<tool_calls>[",
            close: "]</tool_calls>",
            ..JSON
        },
        CallFormat::FireFunction => &Spelling {
            open: " functools[",
            close: "]",
            ..JSON
        },
        CallFormat::Xlam => &Spelling {
            open: "[",
            close: "]",
            ..JSON
        },
        // A call ends the answer.
        CallFormat::GigaChat if template.contains("<|function_call|>") => &Spelling {
            head: "<|function_call|>{\"name\": \"",
            is_single: true,
            ..JSON
        },
        CallFormat::GigaChat => &Spelling {
            head: "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"",
            is_single: true,
            ..JSON
        },
        CallFormat::InternLm if template.contains("\"arguments\"") => &Spelling {
            head: "<|action_start|><|plugin|>\n{\"name\": \"",
            tail: "}<|action_end|>",
            between: "",
            ..JSON
        },
        CallFormat::InternLm => &Spelling {
            head: "<|action_start|><|plugin|>\n{\"name\": \"",
            middle: "\", \"parameters\": ",
            tail: "}<|action_end|>",
            between: "",
            ..JSON
        },
        CallFormat::Functionary => &Spelling {
            middle: "\n",
            between: ">>>",
            ..EMPTY
        },
        CallFormat::Olmo3 => &Spelling {
            notation: Notation::Python,
            open: "<function_calls>",
            middle: "(",
            tail: ")",
            between: "\n",
            close: "</function_calls>",
            ..EMPTY
        },
        CallFormat::MiniCpm5 => &Spelling {
            notation: Notation::Tags(&MINICPM_TAGS),
            head: "<function name=\"",
            middle: "\">",
            tail: "</function>",
            between: "\n",
            ..EMPTY
        },
        CallFormat::SeedOss => &Spelling {
            notation: Notation::Tags(&SEED_TAGS),
            head: "<seed:tool_call>\n<function=",
            middle: ">\n",
            tail: "</function>\n</seed:tool_call>",
            between: "\n",
            ..EMPTY
        },
        CallFormat::MiniMaxM2 => &Spelling {
            notation: Notation::Tags(&INVOKE_TAGS),
            open: "<minimax:tool_call>\n",
            head: "<invoke name=\"",
            middle: "\">\n",
            tail: "</invoke>\n",
            close: "</minimax:tool_call>",
            ..EMPTY
        },
        CallFormat::DeepSeekV3_2 => &DSML,
        CallFormat::DeepSeekV4 => &Spelling {
            open: "<｜DSML｜tool_calls>\n",
            close: "</｜DSML｜tool_calls>",
            ..DSML
        },
        CallFormat::GigaChat3_5 => &Spelling {
            notation: Notation::Tags(&GCML_TAGS),
            open: "<｜GCML｜tool_calls>\n",
            head: "<｜GCML｜invoke name=\"",
            middle: "\">\n",
            tail: "</｜GCML｜invoke>\n",
            close: "</｜GCML｜tool_calls>",
            ..EMPTY
        },
        CallFormat::Step3 => &Spelling {
            notation: Notation::Tags(&STEP_TAGS),
            open: "<｜tool_calls_begin｜>\n",
            head: "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"",
            middle: "\">\n",
            tail: "</steptml:invoke><｜tool_call_end｜>\n",
            close: "<｜tool_calls_end｜>",
            ..EMPTY
        },
    }
}

/// Regular expression of a Llama call's beginning: an object with a key of a call.
const LLAMA_OPENER: &str =
    r#"\{\s*["'](?:name|tool_name|function|arguments|parameters|type|id|tool_call_id)["']\s*:"#;

/// Splits a text at markers that are tokens.
struct Splitter {
    /// Markers with their tokens.
    tokens: Vec<(&'static str, u32)>,
}

impl Splitter {
    fn new(
        markers: impl Iterator<Item = &'static str>,
        token_of: &dyn Fn(&str) -> Option<u32>,
    ) -> Self {
        // Other texts, such as `{` and code fences, are tokens of plain text as well.
        let is_tag = |marker: &&str| marker.len() > 1 && marker.starts_with(['<', '[', '｜']);
        let tokens = markers
            .filter(is_tag)
            .filter_map(|marker| Some((marker, token_of(marker)?)));
        Self {
            tokens: tokens.collect(),
        }
    }

    fn parts(&self, text: &str) -> Value {
        let mut parts = Vec::new();
        let mut rest = text;
        let mut plain = String::new();
        while let Some(c) = rest.chars().next() {
            let found = self
                .tokens
                .iter()
                .find(|(marker, _)| rest.starts_with(marker));
            let part = match (found, c) {
                (Some((_, token)), _) => json!(token),
                (_, POSITION) => json!({ "pattern": "[0-9]|[1-9][0-9]" }),
                (_, TRUTH) => json!({ "pattern": "true|false" }),
                (_, NINE) => json!({ "pattern": "[a-zA-Z0-9]{9}" }),
                _ => {
                    plain.push(c);
                    rest = &rest[c.len_utf8()..];
                    continue;
                }
            };
            if !plain.is_empty() {
                parts.push(json!(std::mem::take(&mut plain)));
            }
            parts.push(part);
            rest = &rest[found.map_or(c.len_utf8(), |(marker, _)| marker.len())..];
        }
        if !plain.is_empty() {
            parts.push(json!(plain));
        }
        parts.into()
    }
}

impl AnswerFormat {
    /// How calls and other answers are written, as JSON for the grammar module: `spelling` (null if
    /// the format is not known) and `frame`, the text around an answer without calls.
    /// `token_of` returns the token of a marker.
    pub fn spelling(&self, template: &str, token_of: &dyn Fn(&str) -> Option<u32>) -> Value {
        let [open, close] = self.frame();
        let frame = Splitter::new([open, close].into_iter().chain(harmony_markers()), token_of);
        let calls = self
            .calls
            .map(|format| described(format, template, token_of));
        json!({
            "spelling": calls,
            "frame": { "open": frame.parts(open), "close": frame.parts(close) },
        })
    }

    /// Text around an answer without calls.
    fn frame(&self) -> [&'static str; 2] {
        if self.calls == Some(CallFormat::Harmony) {
            return ["<|channel|>final<|message|>", ""];
        }
        if self.calls == Some(CallFormat::Functionary) {
            return ["all\n", ""];
        }
        match self.reasoning.map(|markers| markers.dropped) {
            Some(&[open, close]) if open.starts_with("<|") => [open, close],
            _ => ["", ""],
        }
    }
}

fn harmony_markers() -> impl Iterator<Item = &'static str> {
    harmony::MARKERS.iter().copied()
}

fn described(format: CallFormat, template: &str, token_of: &dyn Fn(&str) -> Option<u32>) -> Value {
    let spelled = spelling(format, template);
    let syntax = format.syntax();
    let openers = syntax.as_ref().map_or(&[][..], |syntax| syntax.openers());
    let closers = syntax.as_ref().map_or(&[][..], |syntax| syntax.closers());
    let inner = syntax
        .as_ref()
        .map(|syntax| syntax.inner())
        .unwrap_or_default();
    let markers = openers.iter().chain(closers).copied().chain(inner);
    let splitter = Splitter::new(markers.chain(harmony_markers()), token_of);
    let parts = |text: &str| splitter.parts(text);
    let opener = match (format, openers) {
        (CallFormat::Llama, _) => LLAMA_OPENER.to_owned(),
        (CallFormat::Xlam, _) => format!(r"\[\s*{LLAMA_OPENER}"),
        (CallFormat::Functionary, _) => ">>>[a-zA-Z_]".to_owned(),
        (_, []) => escaped("<|channel|>"),
        (_, openers) => openers
            .iter()
            .map(|text| escaped(text))
            .collect::<Vec<_>>()
            .join("|"),
    };
    let mut described = json!({
        "format": format.name(),
        "notation": match spelled.notation {
            Notation::Json => "json",
            Notation::Python => "python",
            Notation::Delimited(_) => "delimited",
            Notation::Tags(_) => "tags",
        },
        "open": parts(spelled.open),
        "head": parts(spelled.head),
        "middle": parts(spelled.middle),
        "tail": parts(spelled.tail),
        "between": parts(spelled.between),
        "close": parts(spelled.close),
        "isParallel": !spelled.is_single,
        // Its template writes values as JSON.
        "hasJsonWords": format == CallFormat::Olmo3,
        "opener": opener,
    });
    match spelled.notation {
        Notation::Delimited(delimiter) => {
            described["delimiter"] = parts(delimiter);
            described["stringEnds"] = json!([delimiter]);
        }
        Notation::Tags(tags) => {
            described["keyOpen"] = parts(tags.key_open);
            described["keyClose"] = parts(tags.key_close);
            described["valueClose"] = parts(tags.value_close);
            described["stringEnds"] = json!(tags.string_ends);
        }
        _ => {}
    }
    described
}

/// A text as a regular expression.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}
