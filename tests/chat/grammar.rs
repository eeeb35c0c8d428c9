//! Calls by a grammar: what each format's grammar accepts, and that whatever it allows is read back
//! as calls whose arguments the schema accepts.

use super::join;
use jerboa::chat::{AnswerFormat, AnswerStart};
use jerboa_grammar::{Constraint, Grammar, Vocabulary, with_source};
use serde_json::{Value, json};

/// Words of a trained vocabulary.
const WORDS: [&str; 33] = [
    "{\"",
    "\":",
    "\": ",
    "\", ",
    "\"}",
    "}}",
    "[]",
    "[{",
    "}]",
    "true",
    "false",
    "null",
    "True",
    "None",
    "name",
    "value",
    " the",
    " of",
    "\n",
    "  ",
    "12",
    "3",
    ".5",
    "ing",
    "é",
    "🚀",
    "\\n",
    "</",
    "```",
    "\n</parameter>",
    "</arg_value>",
    "<escape>",
    "<|\"|>",
];

/// A format: words of its template, its marker tokens, an example call and wrong ones.
pub(super) struct Format {
    pub template: &'static str,
    pub tokens: &'static [&'static str],
    good: &'static [&'static str],
    bad: &'static [&'static str],
}

impl Format {
    /// The text around an answer without calls.
    fn frame(&self) -> [&'static str; 2] {
        match self.template {
            "<|channel|> <|message|>" => ["<|channel|>final<|message|>", ""],
            "<|START_ACTION|> <|START_THINKING|>" => ["<|START_RESPONSE|>", "<|END_RESPONSE|>"],
            ">>>${recipient}" => ["all\n", ""],
            _ => ["", ""],
        }
    }
}

pub(super) const FORMATS: &[Format] = &[
    Format {
        template: "<tool_call>",
        tokens: &["<tool_call>", "</tool_call>"],
        good: &[
            "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 3}}\n</tool_call>",
            "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
        ],
        bad: &[
            "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": 3}}\n</tool_call>",
            "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"days\": 3}}\n</tool_call>",
            "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>",
            "Hello.",
        ],
    },
    Format {
        template: "<function=",
        tokens: &["<tool_call>", "</tool_call>"],
        good: &[
            "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
            "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        ],
        bad: &[
            "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\nthree\n</parameter>\n</function>\n</tool_call>",
            "<tool_call>\n<function=weather>\n</function>\n</tool_call>",
        ],
    },
    Format {
        template: "<function= parameters => a JSON dict",
        tokens: &[],
        good: &[
            "<function=weather>{\"city\": \"Oslo\", \"days\": 3}</function>",
            "<function=now>{}</function><function=now>{}</function>",
        ],
        bad: &[
            "<function=weather>{\"days\": 3}</function>",
            "<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>",
        ],
    },
    Format {
        template: "<TOOLCALL>",
        tokens: &[],
        good: &[
            "<TOOLCALL>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}, {\"name\": \"now\", \"arguments\": {}}]</TOOLCALL>",
        ],
        bad: &[
            "<TOOLCALL>[]</TOOLCALL>",
            "<TOOLCALL>[{\"name\": \"weather\", \"arguments\": {}}]</TOOLCALL>",
        ],
    },
    Format {
        template: "<|python_tag|>",
        tokens: &["<|python_tag|>"],
        good: &[
            "{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}",
            "{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": {}}",
        ],
        bad: &[
            "{\"name\": \"weather\", \"parameters\": {\"city\": null}}",
            "{\"city\": \"Oslo\"}",
        ],
    },
    Format {
        template: "[TOOL_CALLS]",
        tokens: &["[TOOL_CALLS]"],
        good: &["[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]"],
        bad: &[
            "[TOOL_CALLS][]",
            "[TOOL_CALLS]weather[ARGS]{\"city\": \"Oslo\"}",
        ],
    },
    Format {
        template: "[TOOL_CALLS] [ARGS]",
        tokens: &["[TOOL_CALLS]", "[ARGS]"],
        good: &[
            "[TOOL_CALLS]weather[ARGS]{\"city\": \"Oslo\"}",
            "[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now[ARGS]{}",
        ],
        bad: &["[TOOL_CALLS]weather[ARGS]{\"town\": \"Oslo\"}"],
    },
    Format {
        template: "[TOOL_CALLS] [CALL_ID] [ARGS]",
        tokens: &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
        good: &["[TOOL_CALLS]weather[CALL_ID]abc123DEF[ARGS]{\"city\": \"Oslo\"}"],
        bad: &["[TOOL_CALLS]weather[CALL_ID]abc[ARGS]{\"city\": \"Oslo\"}"],
    },
    Format {
        template: "<|tool_call_start|>",
        tokens: &["<|tool_call_start|>", "<|tool_call_end|>"],
        good: &[
            "<|tool_call_start|>[weather(city=\"Oslo\", days=3)]<|tool_call_end|>",
            "<|tool_call_start|>[now(), search(query=\"a\", limit=None, tags=[\"x\", \"y\"])]<|tool_call_end|>",
        ],
        bad: &[
            "<|tool_call_start|>[weather(city=3)]<|tool_call_end|>",
            "<|tool_call_start|>[weather()]<|tool_call_end|>",
            "<|tool_call_start|>[now(city=\"Oslo\")]<|tool_call_end|>",
        ],
    },
    Format {
        template: "<|tool_call|>",
        tokens: &["<|tool_call|>"],
        good: &[
            "<|tool_call|>[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]",
        ],
        bad: &["<|tool_call|>[]"],
    },
    Format {
        template: "<|tool|> <|/tool|>",
        tokens: &["<|tool_call|>", "<|/tool_call|>"],
        good: &[
            "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]<|/tool_call|>",
        ],
        bad: &["<|tool_call|>[{\"name\": \"weather\", \"arguments\": {}}]<|/tool_call|>"],
    },
    Format {
        template: "<|channel|> <|message|>",
        tokens: &[
            "<|channel|>",
            "<|message|>",
            "<|constrain|>",
            "<|end|>",
            "<|start|>",
            "<|call|>",
        ],
        good: &[
            "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Oslo\"}",
        ],
        bad: &["<|channel|>final<|message|>Hello."],
    },
    Format {
        template: "<|tool_call> <|channel>",
        tokens: &["<|tool_call>", "<tool_call|>", "<|\"|>"],
        good: &[
            "<|tool_call>call:weather{city:<|\"|>Oslo<|\"|>,days:3}<tool_call|>",
            "<|tool_call>call:search{query:<|\"|>a \"b\"<|\"|>,tags:[<|\"|>x<|\"|>]}<tool_call|><|tool_call>call:now{}<tool_call|>",
        ],
        bad: &[
            "<|tool_call>call:weather{city:<|\"|>Oslo<|\"|>,days:<|\"|>3<|\"|>}<tool_call|>",
            "<|tool_call>call:weather{}<tool_call|>",
        ],
    },
    Format {
        template: "<start_function_call>",
        tokens: &["<start_function_call>", "<end_function_call>", "<escape>"],
        good: &["<start_function_call>call:weather{city:<escape>Oslo<escape>}<end_function_call>"],
        bad: &["<start_function_call>call:weather{city:Oslo}<end_function_call>"],
    },
    Format {
        template: "<arg_key>",
        tokens: &[
            "<tool_call>",
            "</tool_call>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
        ],
        good: &[
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
            "<tool_call>now\n</tool_call>\n<tool_call>now\n</tool_call>",
        ],
        bad: &[
            "<tool_call>weather\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        ],
    },
    Format {
        template: "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key>",
        tokens: &[
            "<tool_call>",
            "</tool_call>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
        ],
        good: &["<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>"],
        bad: &["<tool_call>weather</tool_call>"],
    },
    Format {
        template: "<｜tool▁call▁begin｜> ```json",
        tokens: &[
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
        ],
        good: &[
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Oslo\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ],
        bad: &[
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Oslo\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ],
    },
    Format {
        template: "<｜tool▁call▁begin｜>",
        tokens: &[
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
        ],
        good: &[
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Oslo\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ],
        bad: &["<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>"],
    },
    Format {
        template: "Action: tool_name",
        tokens: &[],
        good: &[
            "Action: ```json\n[\n    {\n        \"tool_name\": \"weather\",\n        \"parameters\": {\n            \"city\": \"Oslo\"\n        }\n    }\n]```",
        ],
        bad: &["Action: ```json\n[\n]```"],
    },
    Format {
        template: "<|START_ACTION|> <|START_THINKING|>",
        tokens: &[
            "<|START_ACTION|>",
            "<|END_ACTION|>",
            "<|START_RESPONSE|>",
            "<|END_RESPONSE|>",
        ],
        good: &[
            "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}\n]<|END_ACTION|>",
        ],
        bad: &["<|START_RESPONSE|>Hello.<|END_RESPONSE|>"],
    },
    Format {
        template: "<|tool_call_begin|>",
        tokens: &[
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            "<|tool_calls_section_end|>",
        ],
        good: &[
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"city\": \"Oslo\"}<|tool_call_end|><|tool_calls_section_end|>",
        ],
        bad: &[
            "<|tool_calls_section_begin|><|tool_call_begin|>weather<|tool_call_argument_begin|>{\"city\": \"Oslo\"}<|tool_call_end|><|tool_calls_section_end|>",
        ],
    },
    Format {
        template: "<tool_call>{",
        tokens: &["<tool_call>", "</tool_call>"],
        good: &[
            "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>",
            "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
        ],
        bad: &["<tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call>"],
    },
    Format {
        template: "<tool_calls>",
        tokens: &["<tool_calls>", "</tool_calls>"],
        good: &[
            "<tool_calls>[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]</tool_calls>",
        ],
        bad: &[
            "<tool_calls>[]</tool_calls>",
            "<tool_calls>[{\"name\": \"weather\", \"arguments\": {}}]</tool_calls>",
        ],
    },
    Format {
        template: "<function_calls>",
        tokens: &["<function_calls>", "</function_calls>"],
        good: &[
            "<function_calls>weather(city=\"Oslo\", days=3, metric=true)</function_calls>",
            "<function_calls>now()\nsearch(query=\"a\", limit=null, tags=[\"x\", \"y\"])</function_calls>",
        ],
        bad: &[
            "<function_calls>weather(city=3)</function_calls>",
            "<function_calls>weather(city=\"Oslo\", metric=True)</function_calls>",
            "<function_calls></function_calls>",
        ],
    },
    Format {
        template: ">>>${recipient}",
        tokens: &[],
        good: &[
            "weather\n{\"city\": \"Oslo\"}",
            "now\n{}>>>weather\n{\"city\": \"Oslo\"}",
        ],
        bad: &["weather\n{\"days\": 3}", "other\n{}", "all\nHello."],
    },
    Format {
        template: "functools[",
        tokens: &[],
        good: &[
            " functools[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]",
        ],
        bad: &[" functools[]"],
    },
    Format {
        template: "make calls in a single JSON array",
        tokens: &[],
        good: &[
            "[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]",
            "[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"now\", \"arguments\": {}}]",
        ],
        bad: &["[{\"name\": \"weather\", \"arguments\": {}}]"],
    },
    Format {
        template: "<|message_sep|> function call",
        tokens: &["<|message_sep|>", "<|role_sep|>"],
        good: &[
            "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}",
        ],
        bad: &[
            "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"weather\", \"arguments\": {}}",
        ],
    },
    Format {
        template: "<|function_call|>",
        tokens: &["<|function_call|>"],
        good: &["<|function_call|>{\"name\": \"now\", \"arguments\": {}}"],
        bad: &["<|function_call|>{\"name\": \"weather\", \"arguments\": {}}"],
    },
    Format {
        template: "<|action_start|><|plugin|>",
        tokens: &["<|action_start|>", "<|plugin|>", "<|action_end|>"],
        good: &[
            "<|action_start|><|plugin|>\n{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}<|action_end|>",
            "<|action_start|><|plugin|>\n{\"name\": \"now\", \"parameters\": {}}<|action_end|><|action_start|><|plugin|>\n{\"name\": \"now\", \"parameters\": {}}<|action_end|>",
        ],
        bad: &[
            "<|action_start|><|plugin|>\n{\"name\": \"weather\", \"parameters\": {}}<|action_end|>",
        ],
    },
    Format {
        template: "<function name=",
        tokens: &["<function", "<param", "</function>", "</param>"],
        good: &[
            "<function name=\"weather\"><param name=\"city\">Oslo</param><param name=\"days\">3</param></function>",
            "<function name=\"now\"></function>\n<function name=\"now\"></function>",
        ],
        bad: &[
            "<function name=\"weather\"></function>",
            "<function name=\"weather\"><param name=\"city\">Oslo</param><param name=\"days\">x</param></function>",
        ],
    },
    Format {
        template: "<seed:tool_call>",
        tokens: &["<seed:tool_call>", "</seed:tool_call>"],
        good: &[
            "<seed:tool_call>\n<function=weather>\n<parameter=city>Oslo</parameter>\n<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
            "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
        ],
        bad: &["<seed:tool_call>\n<function=weather>\n</function>\n</seed:tool_call>"],
    },
    Format {
        template: "<minimax:tool_call>",
        tokens: &["<minimax:tool_call>", "</minimax:tool_call>"],
        good: &[
            "<minimax:tool_call>\n<invoke name=\"now\">\n</invoke>\n<invoke name=\"weather\">\n<parameter name=\"city\">Oslo</parameter>\n<parameter name=\"days\">3</parameter>\n</invoke>\n</minimax:tool_call>",
        ],
        bad: &[
            "<minimax:tool_call>\n<invoke name=\"weather\">\n</invoke>\n</minimax:tool_call>",
            "<minimax:tool_call>\n</minimax:tool_call>",
        ],
    },
    Format {
        template: "｜DSML｜ function_calls>",
        tokens: &["｜DSML｜"],
        good: &[
            "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Oslo</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        ],
        bad: &[
            "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        ],
    },
    Format {
        template: "｜DSML｜ tool_calls>",
        tokens: &["｜DSML｜"],
        good: &[
            "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        ],
        bad: &[
            "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"weather\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        ],
    },
    Format {
        template: "<｜GCML｜tool_calls>",
        tokens: &["｜GCML｜"],
        good: &[
            "<｜GCML｜tool_calls>\n<｜GCML｜invoke name=\"weather\">\n<｜GCML｜parameter name=\"city\" string=\"true\">Oslo</｜GCML｜parameter>\n</｜GCML｜invoke>\n</｜GCML｜tool_calls>",
        ],
        bad: &[
            "<｜GCML｜tool_calls>\n<｜GCML｜invoke name=\"weather\">\n</｜GCML｜invoke>\n</｜GCML｜tool_calls>",
        ],
    },
    Format {
        template: "<steptml:invoke",
        tokens: &[
            "<｜tool_calls_begin｜>",
            "<｜tool_calls_end｜>",
            "<｜tool_call_begin｜>",
            "<｜tool_call_end｜>",
            "<｜tool_sep｜>",
        ],
        good: &[
            "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"weather\">\n<steptml:parameter name=\"city\">Oslo</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>",
        ],
        bad: &["<｜tool_calls_begin｜>\n<｜tool_calls_end｜>"],
    },
];

#[allow(clippy::needless_pass_by_value)] // its callers make it for this alone
fn tool(name: &str, parameters: Value) -> Value {
    json!({ "name": name, "parameters": parameters, "strict": true })
}

/// Functions with every kind of argument.
fn tools() -> Vec<Value> {
    vec![
        tool("now", json!({ "type": "object", "properties": {} })),
        tool(
            "weather",
            json!({
                "type": "object",
                "properties": { "city": { "type": "string", "maxLength": 12 }, "days": { "type": "integer", "minimum": 0, "maximum": 14 }, "metric": { "type": "boolean" } },
                "required": ["city"],
            }),
        ),
        tool(
            "search",
            json!({
                "type": "object",
                "properties": {
                    "query": { "type": "string" },
                    "limit": { "type": ["integer", "null"] },
                    "unit": { "enum": ["km", "mi", null, 3] },
                    "day": { "type": "string", "format": "date" },
                    "code": { "type": ["string", "null"], "pattern": "^[a-z]{2}[0-9]?$" },
                    "tags": { "type": "array", "items": { "type": "string", "maxLength": 3 }, "maxItems": 3 },
                    "place": { "anyOf": [{ "$ref": "#/$defs/place" }, { "type": "null" }] },
                    "tree": { "$ref": "#/$defs/tree" },
                },
                "required": ["query", "tags"],
                "additionalProperties": false,
                "$defs": {
                    "place": { "type": "object", "properties": { "lat": { "type": "number", "minimum": -90, "maximum": 90 }, "is near": { "type": "boolean" } }, "required": ["lat"], "additionalProperties": false },
                    "tree": { "type": "object", "properties": { "kind": { "const": "leaf" }, "children": { "type": "array", "items": { "$ref": "#/$defs/tree" }, "maxItems": 2 } }, "required": ["kind"], "additionalProperties": false },
                },
            }),
        ),
    ]
}

struct Setup {
    vocabulary: Vocabulary,
    tokens: Vec<String>,
    format: AnswerFormat,
    template: &'static str,
    markers: &'static [&'static str],
    end: u32,
}

impl Setup {
    /// A vocabulary with the format's markers as tokens, or as text.
    fn new(format: &Format, has_tokens: bool) -> Self {
        let markers = if has_tokens { format.tokens } else { &[] };
        let mut bytes: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
        bytes.extend(WORDS.iter().map(|word| word.as_bytes().to_vec()));
        // Special tokens have no bytes of their own.
        bytes.extend(markers.iter().map(|_| Vec::new()));
        let end = bytes.len() as u32;
        bytes.push(b"<eos>".to_vec());
        let mut tokens: Vec<String> = WORDS.iter().map(|&word| word.to_owned()).collect();
        tokens.extend(markers.iter().map(|&marker| marker.to_owned()));
        let detected = AnswerFormat::detect(format.template, &|name| markers.contains(&name));
        Self {
            vocabulary: Vocabulary::new(bytes, &[end]).expect("a vocabulary"),
            tokens,
            format: detected,
            template: format.template,
            markers,
            end,
        }
    }

    fn token_of(&self, marker: &str) -> Option<u32> {
        let at = self.markers.iter().position(|name| *name == marker)?;
        Some((256 + WORDS.len() + at) as u32)
    }

    fn grammar(&self, more: &Value) -> Grammar {
        let mut spec = self
            .format
            .spelling(self.template, &|marker| self.token_of(marker));
        let fields = spec.as_object_mut().expect("an object");
        fields.extend(
            json!({ "tools": tools(), "choice": "required", "parallel": true })
                .as_object()
                .cloned()
                .expect("an object"),
        );
        fields.extend(more.as_object().cloned().expect("an object"));
        let found = with_source("answer", &spec.to_string(), |constraint| {
            self.vocabulary.grammar(constraint)
        });
        found
            .flatten()
            .unwrap_or_else(|error| panic!("{}: {error}", self.template))
    }

    /// The ids of a text: markers, then single bytes.
    fn ids(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            match self
                .markers
                .iter()
                .find(|marker| rest.starts_with(**marker))
            {
                Some(marker) => {
                    ids.extend(self.token_of(marker));
                    rest = &rest[marker.len()..];
                }
                None => {
                    ids.push(u32::from(rest.as_bytes()[0]));
                    let next = rest.chars().next().map_or(1, char::len_utf8);
                    ids.extend(rest.as_bytes()[1..next].iter().map(|b| u32::from(*b)));
                    rest = &rest[next..];
                }
            }
        }
        ids
    }

    /// How much of a text the grammar takes; None for all of it.
    fn refused_at(&self, grammar: &mut Grammar, text: &str) -> Option<usize> {
        let ids = self.ids(text);
        for (at, id) in ids.iter().enumerate() {
            if !allowed(grammar, &self.vocabulary).contains(id) {
                return Some(at);
            }
            grammar.accept(*id).expect("an allowed token");
        }
        (!grammar.is_complete()).then_some(ids.len())
    }

    /// A random answer; None if it does not end in time.
    fn walk(&self, grammar: &mut Grammar, random: &mut u64) -> Option<String> {
        let mut bytes: Vec<u8> = Vec::new();
        for step in 0..400 {
            let ids = allowed(grammar, &self.vocabulary);
            assert!(
                !ids.is_empty(),
                "{}: no token after {}",
                self.template,
                String::from_utf8_lossy(&bytes)
            );
            let others: Vec<u32> = ids.iter().copied().filter(|id| *id != self.end).collect();
            if ids.len() > others.len()
                && (others.is_empty() || next_random(random).is_multiple_of(3) || step > 200)
            {
                return Some(String::from_utf8(bytes).expect("text"));
            }
            // Structure rather than noise: else strings would never end.
            let usual: Vec<u32> = others
                .iter()
                .copied()
                .filter(|id| *id >= 33 && *id < 127 || *id > 255)
                .collect();
            let from = if usual.is_empty() || next_random(random).is_multiple_of(20) {
                &others
            } else {
                &usual
            };
            let marks: Vec<u32> = from
                .iter()
                .copied()
                .filter(|id| {
                    // Later, what closes strings and brackets.
                    let marks: &[u8] = if step < 100 {
                        b"\"'{}[]():,<=/0"
                    } else {
                        b"\"}])0"
                    };
                    *id > 255 + WORDS.len() as u32 || *id < 256 && marks.contains(&(*id as u8))
                })
                .collect();
            let often = if step < 100 { 5 } else { 9 };
            let from = if !marks.is_empty() && next_random(random) % 10 < often {
                &marks
            } else {
                from
            };
            let id = from[(next_random(random) % from.len() as u64) as usize];
            match id {
                0..=255 => bytes.push(id as u8),
                _ => bytes.extend(self.tokens[id as usize - 256].as_bytes()),
            }
            grammar.accept(id).expect("an allowed token");
        }
        None
    }
}

/// The next of a sequence of random numbers of 31 bits.
pub(super) fn next_random(random: &mut u64) -> u64 {
    *random = random
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *random >> 33
}

/// The ids that may come next.
pub(super) fn allowed(grammar: &mut Grammar, vocabulary: &Vocabulary) -> Vec<u32> {
    let mut words = vec![0; vocabulary.mask_words()];
    grammar.write_mask(&mut words).expect("a mask");
    (0..words.len() as u32 * 32)
        .filter(|id| words[*id as usize / 32] >> (id % 32) & 1 == 1)
        .collect()
}

/// Asserts that each call is of one of the tools, and that its schema, without further properties,
/// accepts the arguments. `refused_at` tells how much of them a schema accepts; None for all.
pub(super) fn assert_arguments(
    calls: &[(String, String)],
    tools: &[Value],
    place: &str,
    refused_at: impl Fn(&Value, &str) -> Option<usize>,
) {
    for (name, arguments) in calls {
        let tool = tools.iter().find(|tool| tool["name"] == **name);
        let mut schema = tool.unwrap_or_else(|| panic!("{name}: {place}"))["parameters"].clone();
        schema["additionalProperties"] = false.into();
        let at = refused_at(&schema, arguments);
        assert_eq!(at, None, "{arguments} of {place}");
    }
}

/// Asserts that a text is read as calls of the tools, with arguments that their schemas accept.
fn assert_calls(setup: &Setup, text: &str) -> usize {
    let mut parser = setup.format.parser(AnswerStart {
        tools: &tools(),
        ..AnswerStart::default()
    });
    let mut parts = parser.push(text);
    parts.extend(parser.finish());
    let answer = join(&parts);
    assert_eq!(answer.content.trim(), "", "{}: {text}", setup.template);
    assert!(!answer.calls.is_empty(), "{}: {text}", setup.template);
    let place = format!("{}: {text}", setup.template);
    assert_arguments(&answer.calls, &tools(), &place, |schema, arguments| {
        let mut grammar = setup
            .vocabulary
            .grammar(Constraint::JsonSchema(schema))
            .expect("a schema");
        // The compiler writes no DEL, which JSON allows.
        setup.refused_at(&mut grammar, &arguments.replace('\u{7f}', "?"))
    });
    answer.calls.len()
}

#[test]
fn every_format_accepts_its_calls_and_no_others() {
    for format in FORMATS {
        for has_tokens in [true, false] {
            let setup = Setup::new(format, has_tokens);
            for text in format.good {
                let at = setup.refused_at(&mut setup.grammar(&json!({})), text);
                assert_eq!(at, None, "{} {has_tokens}: {text}", format.template);
                assert_calls(&setup, text);
            }
            for text in format.bad {
                let at = setup.refused_at(&mut setup.grammar(&json!({})), text);
                assert!(at.is_some(), "{} {has_tokens}: {text}", format.template);
            }
        }
    }
}

#[test]
fn random_answers_are_calls_with_valid_arguments() {
    for format in FORMATS {
        for has_tokens in [true, false] {
            let setup = Setup::new(format, has_tokens);
            let mut random = 7;
            let mut ended = 0;
            for _ in 0..6 {
                if let Some(text) = setup.walk(&mut setup.grammar(&json!({})), &mut random) {
                    ended += 1;
                    assert_calls(&setup, &text);
                }
            }
            assert!(
                ended >= 2,
                "{} {has_tokens}: {ended} ended",
                format.template
            );
        }
    }
}

#[test]
fn only_tags_are_named_by_token() {
    for format in FORMATS {
        let detected = AnswerFormat::detect(format.template, &|_| false);
        detected.spelling(format.template, &|marker| {
            let is_tag = marker.len() > 1 && marker.starts_with(['<', '[', '｜']);
            assert!(is_tag, "{}: {marker}", format.template);
            None
        });
    }
}

#[test]
fn one_call_where_one_is_asked_for() {
    for format in FORMATS {
        let setup = Setup::new(format, true);
        let mut random = 3;
        for _ in 0..4 {
            let mut grammar = setup.grammar(&json!({ "parallel": false }));
            if let Some(text) = setup.walk(&mut grammar, &mut random) {
                assert_eq!(assert_calls(&setup, &text), 1, "{text}");
            }
        }
    }
}

#[test]
fn text_is_free_until_a_call_opens() {
    for format in FORMATS {
        for has_tokens in [true, false] {
            let setup = Setup::new(format, has_tokens);
            let auto = json!({ "choice": "auto" });
            let name = format!("{} {has_tokens}", format.template);
            let [open, close] = format.frame();
            let text = format!("{open}Hello {{\"a\": [1]}} <b>.\n{close}");
            assert_eq!(
                setup.refused_at(&mut setup.grammar(&auto), &text),
                None,
                "{name}: {text}"
            );
            for call in format.good {
                assert_eq!(
                    setup.refused_at(&mut setup.grammar(&auto), call),
                    None,
                    "{name}: {call}"
                );
                if open.is_empty() {
                    let text = format!("I look.\n{call}");
                    assert_eq!(
                        setup.refused_at(&mut setup.grammar(&auto), &text),
                        None,
                        "{name}: {text}"
                    );
                }
            }
            for call in format
                .bad
                .iter()
                .filter(|call| setup.ids(call)[0] != u32::from(b'H'))
            {
                if call.contains("Hello") || *call == "{\"city\": \"Oslo\"}" {
                    continue;
                }
                let at = setup.refused_at(&mut setup.grammar(&auto), call);
                assert!(at.is_some(), "{name}: {call}");
            }
        }
    }
}

#[test]
fn an_answer_by_a_schema_or_a_call() {
    let schema = json!({ "type": "object", "properties": { "sum": { "type": "integer" } }, "required": ["sum"], "additionalProperties": false });
    let answer = json!({ "choice": "auto", "answer": { "kind": "json_schema", "source": schema.to_string() } });
    for format in FORMATS {
        let setup = Setup::new(format, true);
        let [open, close] = format.frame();
        let json = format!("{open}{{\"sum\": 3}}{close}");
        assert_eq!(
            setup.refused_at(&mut setup.grammar(&answer), &json),
            None,
            "{json}"
        );
        assert_eq!(
            setup.refused_at(&mut setup.grammar(&answer), format.good[0]),
            None,
            "{}",
            format.good[0]
        );
        let text = format!("{open}Hello{close}");
        assert!(
            setup
                .refused_at(&mut setup.grammar(&answer), &text)
                .is_some(),
            "{text}"
        );
        let mut alone = answer.clone();
        alone["tools"] = json!([]);
        assert_eq!(
            setup.refused_at(&mut setup.grammar(&alone), &json),
            None,
            "{json}"
        );
        assert!(
            setup
                .refused_at(&mut setup.grammar(&alone), format.good[0])
                .is_some()
        );
    }
}

#[test]
fn what_cannot_be_enforced_is_refused_by_the_tools_name() {
    let setup = Setup::new(&FORMATS[0], true);
    let unique = json!({ "type": "object", "properties": { "a": { "type": "array", "uniqueItems": true } } });
    let xml = Setup::new(&FORMATS[1], true);
    let alternatives = json!({ "anyOf": [{ "properties": { "a": {} } }] });
    for (setup, tools, reason) in [
        (
            &setup,
            json!([tool("now", json!({})), tool("pick", unique.clone())]),
            "tool 'pick': Unimplemented keys: [\"uniqueItems\"]",
        ),
        (
            &setup,
            json!([tool("a b", json!({}))]),
            "tool 'a b': a name may contain only letters",
        ),
        (
            &setup,
            json!([tool("f", json!({ "type": "array" }))]),
            "tool 'f': 'parameters' must be a schema of type 'object'",
        ),
        (
            &xml,
            json!([tool("f", alternatives)]),
            "tool 'f': the format 'function-xml' names each argument",
        ),
        (&setup, json!([]), "no tools to call"),
    ] {
        let mut spec = setup
            .format
            .spelling(setup.template, &|marker| setup.token_of(marker));
        spec["tools"] = tools;
        spec["choice"] = "required".into();
        spec["parallel"] = false.into();
        let found = with_source("answer", &spec.to_string(), |constraint| {
            setup.vocabulary.grammar(constraint).map(drop)
        });
        let error = found.flatten().expect_err("refused").to_string();
        assert!(error.contains(reason), "{error}");
    }
    // Without `strict`, the keyword has no effect.
    let grammar = setup.grammar(&json!({ "tools": [{ "name": "pick", "parameters": unique }] }));
    drop(grammar);
}
