//! The table that assigns an answer format to a chat template and its vocabulary.

use super::formats::function_xml::{self, FunctionXmlSyntax, XmlMarkers};
use super::formats::functionary::FunctionarySyntax;
use super::formats::gemma::{FUNCTION_GEMMA, GEMMA4, GemmaSyntax};
use super::formats::glm::GlmSyntax;
use super::formats::json_tags::{self, JsonTagSyntax, JsonTags};
use super::formats::llama::LlamaSyntax;
use super::formats::mistral::MistralSyntax;
use super::formats::pythonic::{LFM2, OLMO3, PythonicSyntax};
use super::formats::sections::{DEEPSEEK, KIMI, SectionSyntax};
use super::parts::CallIdStyle;
use super::tagged::{CallSyntax, ReasoningMarkers};

/// A family's format of tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallFormat {
    /// `<tool_call>{"name": …}</tool_call>`.
    Hermes,
    /// `<tool_call><function=NAME><parameter=KEY>…`, `<function=NAME>{…}</function>`.
    FunctionXml,
    /// `{"name": …, "parameters": …}`, `<|python_tag|>`.
    Llama,
    /// `[TOOL_CALLS]`, as a list or with `[ARGS]`.
    Mistral,
    /// `<|tool_call_start|>[f(a=1)]<|tool_call_end|>`.
    Lfm2,
    /// `<|tool_call|>[{…}]`.
    Granite,
    /// `<|tool_call|>[{…}]<|/tool_call|>`.
    Phi4,
    /// `<TOOLCALL>[{…}]</TOOLCALL>`.
    Nemotron,
    /// `<|channel|>commentary to=functions.NAME`.
    Harmony,
    /// `<|tool_call>call:NAME{…}<tool_call|>`.
    Gemma4,
    /// `<start_function_call>call:NAME{…}<end_function_call>`.
    FunctionGemma,
    /// `<tool_call>NAME<arg_key>…<arg_value>…`.
    Glm,
    /// `<｜tool▁calls▁begin｜>`.
    DeepSeek,
    /// `Action:` and a JSON code block.
    CommandR,
    /// `<|START_ACTION|>[…]<|END_ACTION|>`.
    CommandR7b,
    /// `<|tool_calls_section_begin|>`.
    KimiK2,
    /// `<tool_calls>[{…}]</tool_calls>`.
    ToolCalls,
    /// `<function_calls>f(a=1)</function_calls>`.
    Olmo3,
    /// `>>>NAME` and a line of JSON.
    Functionary,
    /// `functools[{…}]`.
    FireFunction,
    /// `[{"name": …}]` without markers.
    Xlam,
    /// `<|function_call|>{…}`.
    GigaChat,
    /// `<｜GCML｜tool_calls><｜GCML｜invoke name="NAME">…`.
    GigaChat3_5,
    /// `<|action_start|><|plugin|>{…}<|action_end|>`.
    InternLm,
    /// `<function name="NAME"><param name="KEY">…`.
    MiniCpm5,
    /// `<seed:tool_call><function=NAME><parameter=KEY>…`.
    SeedOss,
    /// `<minimax:tool_call><invoke name="NAME"><parameter name="KEY">…`.
    MiniMaxM2,
    /// `<｜DSML｜function_calls><｜DSML｜invoke name="NAME">…`.
    DeepSeekV3_2,
    /// `<｜DSML｜tool_calls>`, otherwise like DeepSeek V3.2.
    DeepSeekV4,
    /// `<｜tool_calls_begin｜>…<steptml:invoke name="NAME">…`.
    Step3,
}

impl CallFormat {
    /// Stable name of the format.
    pub fn name(self) -> &'static str {
        match self {
            CallFormat::Hermes => "hermes",
            CallFormat::FunctionXml => "function-xml",
            CallFormat::Llama => "llama",
            CallFormat::Mistral => "mistral",
            CallFormat::Lfm2 => "lfm2",
            CallFormat::Granite => "granite",
            CallFormat::Phi4 => "phi4",
            CallFormat::Nemotron => "nemotron",
            CallFormat::Harmony => "harmony",
            CallFormat::Gemma4 => "gemma4",
            CallFormat::FunctionGemma => "functiongemma",
            CallFormat::Glm => "glm",
            CallFormat::DeepSeek => "deepseek",
            CallFormat::CommandR => "command-r",
            CallFormat::CommandR7b => "command-r7b",
            CallFormat::KimiK2 => "kimi-k2",
            CallFormat::ToolCalls => "tool-calls",
            CallFormat::Olmo3 => "olmo3",
            CallFormat::Functionary => "functionary",
            CallFormat::FireFunction => "firefunction",
            CallFormat::Xlam => "xlam",
            CallFormat::GigaChat => "gigachat",
            CallFormat::GigaChat3_5 => "gigachat-3.5",
            CallFormat::InternLm => "internlm",
            CallFormat::MiniCpm5 => "minicpm5",
            CallFormat::SeedOss => "seed-oss",
            CallFormat::MiniMaxM2 => "minimax-m2",
            CallFormat::DeepSeekV3_2 => "deepseek-v3.2",
            CallFormat::DeepSeekV4 => "deepseek-v4",
            CallFormat::Step3 => "step3",
        }
    }

    /// Ids that the family's template accepts.
    pub(super) fn id_style(self) -> CallIdStyle {
        match self {
            CallFormat::Mistral => CallIdStyle::Nine,
            _ => CallIdStyle::OpenAi,
        }
    }

    /// Names that the protocol uses for answers without a call.
    pub(super) fn hidden_names(self) -> &'static [&'static str] {
        match self {
            CallFormat::CommandR => &["directly-answer", "directly_answer"],
            _ => &[],
        }
    }

    /// The parser of the format; None for formats that are not a region of the text.
    pub(super) fn syntax(self) -> Option<Box<dyn CallSyntax>> {
        let json = |tags: JsonTags| -> Box<dyn CallSyntax> { Box::new(JsonTagSyntax::new(tags)) };
        let xml = |markers: &'static XmlMarkers| -> Box<dyn CallSyntax> {
            Box::new(FunctionXmlSyntax::new(markers))
        };
        Some(match self {
            CallFormat::Hermes => json(json_tags::HERMES),
            CallFormat::Granite => json(json_tags::GRANITE),
            CallFormat::Phi4 => json(json_tags::PHI4),
            CallFormat::Nemotron => json(json_tags::NEMOTRON),
            CallFormat::CommandR => json(json_tags::COMMAND_R),
            CallFormat::CommandR7b => json(json_tags::COMMAND_R7B),
            CallFormat::ToolCalls => json(json_tags::TOOL_CALLS),
            CallFormat::FireFunction => json(json_tags::FIREFUNCTION),
            CallFormat::Xlam => json(json_tags::XLAM),
            CallFormat::GigaChat => json(json_tags::GIGACHAT),
            CallFormat::InternLm => json(json_tags::INTERNLM),
            CallFormat::FunctionXml => xml(&function_xml::FUNCTION_XML),
            CallFormat::MiniCpm5 => xml(&function_xml::MINICPM),
            CallFormat::SeedOss => xml(&function_xml::SEED),
            CallFormat::MiniMaxM2 => xml(&function_xml::MINIMAX),
            CallFormat::DeepSeekV3_2 => xml(&function_xml::DSML),
            CallFormat::DeepSeekV4 => xml(&function_xml::DSML_TOOL),
            CallFormat::GigaChat3_5 => xml(&function_xml::GCML),
            CallFormat::Step3 => xml(&function_xml::STEP),
            CallFormat::Llama => Box::new(LlamaSyntax::new()),
            CallFormat::Mistral => Box::new(MistralSyntax::new()),
            CallFormat::Lfm2 => Box::new(PythonicSyntax::new(LFM2)),
            CallFormat::Olmo3 => Box::new(PythonicSyntax::new(OLMO3)),
            CallFormat::Functionary => Box::<FunctionarySyntax>::default(),
            CallFormat::Gemma4 => Box::new(GemmaSyntax::new(GEMMA4)),
            CallFormat::FunctionGemma => Box::new(GemmaSyntax::new(FUNCTION_GEMMA)),
            CallFormat::Glm => Box::new(GlmSyntax::new()),
            CallFormat::DeepSeek => Box::new(SectionSyntax::new(DEEPSEEK)),
            CallFormat::KimiK2 => Box::new(SectionSyntax::new(KIMI)),
            CallFormat::Harmony => return None,
        })
    }
}

/// A row: all of `template` occur in the template, and the vocabulary has `token`, if given.
struct Rule<T> {
    template: &'static [&'static str],
    token: Option<&'static str>,
    format: T,
}

const fn rule<T>(template: &'static [&'static str], format: T) -> Rule<T> {
    Rule {
        template,
        token: None,
        format,
    }
}

/// The first row that applies counts: later rows have markers that earlier families use as well.
const CALL_RULES: &[Rule<CallFormat>] = &[
    rule(&["<|channel|>", "<|message|>"], CallFormat::Harmony),
    rule(&["<|tool_call>"], CallFormat::Gemma4),
    rule(&["<start_function_call>"], CallFormat::FunctionGemma),
    rule(&["<|tool_call_begin|>"], CallFormat::KimiK2),
    rule(&["<｜tool▁call▁begin｜>"], CallFormat::DeepSeek),
    rule(&["<|START_ACTION|>"], CallFormat::CommandR7b),
    rule(&["Action:", "tool_name"], CallFormat::CommandR),
    rule(&["<arg_key>"], CallFormat::Glm),
    rule(&["<seed:tool_call>"], CallFormat::SeedOss),
    rule(&["<minimax:tool_call>"], CallFormat::MiniMaxM2),
    rule(&["｜DSML｜", "function_calls>"], CallFormat::DeepSeekV3_2),
    rule(&["｜DSML｜", "tool_calls>"], CallFormat::DeepSeekV4),
    rule(&["<｜GCML｜"], CallFormat::GigaChat3_5),
    rule(&["<steptml:invoke"], CallFormat::Step3),
    rule(&["<function name="], CallFormat::MiniCpm5),
    rule(&["<function="], CallFormat::FunctionXml),
    rule(&["<|tool|>", "<|/tool|>"], CallFormat::Phi4),
    rule(&["<|tool_call|>"], CallFormat::Granite),
    rule(&["<TOOLCALL>"], CallFormat::Nemotron),
    rule(&["[TOOL_CALLS]"], CallFormat::Mistral),
    rule(&["[AVAILABLE_TOOLS]"], CallFormat::Mistral),
    rule(&["<|tool_call_start|>"], CallFormat::Lfm2),
    rule(&["<|tool_list_start|>"], CallFormat::Lfm2),
    Rule {
        template: &["List of tools: ["],
        token: Some("<|tool_call_start|>"),
        format: CallFormat::Lfm2,
    },
    rule(&["<tool_calls>"], CallFormat::ToolCalls),
    rule(&["<function_calls>"], CallFormat::Olmo3),
    rule(&[">>>${recipient}"], CallFormat::Functionary),
    rule(&["functools["], CallFormat::FireFunction),
    rule(&["<|function_call|>"], CallFormat::GigaChat),
    rule(&["<|message_sep|>", "function call"], CallFormat::GigaChat),
    rule(&["<|action_start|>", "<|plugin|>"], CallFormat::InternLm),
    rule(&["make calls in a single JSON array"], CallFormat::Xlam),
    rule(&["<tool_call>"], CallFormat::Hermes),
    rule(&["<|python_tag|>"], CallFormat::Llama),
    rule(
        &["\"parameters\": dictionary of argument name and its value"],
        CallFormat::Llama,
    ),
];

const THINK: ReasoningMarkers = ReasoningMarkers {
    open: &["<think>"],
    close: &["</think>"],
    is_anywhere: false,
    dropped: &[],
    inner: &[],
    forced_close: "\n</think>\n\n",
};

const HUNYUAN: ReasoningMarkers = ReasoningMarkers {
    dropped: &["<answer>", "</answer>"],
    forced_close: "\n</think>\n<answer>\n",
    ..THINK
};

const SEED: ReasoningMarkers = ReasoningMarkers {
    open: &["<seed:think>"],
    close: &["</seed:think>"],
    // Around the model's notes on its thinking budget.
    inner: &["<seed:cot_budget_reflect>", "</seed:cot_budget_reflect>"],
    forced_close: "</seed:think>\n",
    ..THINK
};

const APRIEL: ReasoningMarkers = ReasoningMarkers {
    open: &["Here are my reasoning steps:"],
    close: &["[BEGIN FINAL RESPONSE]"],
    dropped: &["[END FINAL RESPONSE]"],
    forced_close: "\n[BEGIN FINAL RESPONSE]\n",
    ..THINK
};

const GRANITE: ReasoningMarkers = ReasoningMarkers {
    dropped: &["<response>", "</response>"],
    ..THINK
};

const GRANITE_PROSE: ReasoningMarkers = ReasoningMarkers {
    open: &["Here is my thought process:", "Here's my thought process:"],
    close: &["Here is my response:", "Here's my response:"],
    forced_close: "\n\nHere is my response:\n",
    ..THINK
};

const MISTRAL: ReasoningMarkers = ReasoningMarkers {
    open: &["[THINK]"],
    close: &["[/THINK]"],
    is_anywhere: true,
    forced_close: "[/THINK]",
    ..THINK
};

const COHERE: ReasoningMarkers = ReasoningMarkers {
    open: &["<|START_THINKING|>"],
    close: &["<|END_THINKING|>"],
    is_anywhere: true,
    dropped: &["<|START_RESPONSE|>", "<|END_RESPONSE|>"],
    forced_close: "<|END_THINKING|><|START_RESPONSE|>",
    ..THINK
};

const GEMMA: ReasoningMarkers = ReasoningMarkers {
    open: &["<|channel>thought"],
    close: &["<channel|>"],
    is_anywhere: true,
    forced_close: "\n<channel|>",
    ..THINK
};

const REASONING_RULES: &[Rule<ReasoningMarkers>] = &[
    rule(&["<|channel>"], GEMMA),
    rule(&["<|START_THINKING|>"], COHERE),
    rule(&["[THINK]"], MISTRAL),
    rule(&["<seed:think>"], SEED),
    rule(&["[BEGIN FINAL RESPONSE]"], APRIEL),
    // Its template has `<response>` around results of tools.
    rule(&["<minimax:tool_call>"], THINK),
    rule(&["<think>", "<response>"], GRANITE),
    rule(&["<think>", "<answer>"], HUNYUAN),
    rule(&["<think>", "<｜hy_"], HUNYUAN),
    rule(&["Here is my thought process:"], GRANITE_PROSE),
    rule(&["<think>"], THINK),
    rule(&["</think>"], THINK),
    Rule {
        template: &[],
        token: Some("[THINK]"),
        format: MISTRAL,
    },
    Rule {
        template: &[],
        token: Some("</think>"),
        format: THINK,
    },
];

fn first<T: Copy>(
    rules: &[Rule<T>],
    template: &str,
    has_token: &dyn Fn(&str) -> bool,
) -> Option<T> {
    rules
        .iter()
        .find(|rule| {
            rule.template.iter().all(|text| template.contains(text))
                && rule.token.is_none_or(has_token)
        })
        .map(|rule| rule.format)
}

/// Markers of formats that are not supported, next to markers of formats that are: Hunyuan 3,
/// MiniMax M3. Templates of MiniCPM 5 name Hunyuan's separator as well.
const UNSUPPORTED: [&[&str]; 2] = [&["<tool_sep>", "<arg_key>"], &["]<]minimax[>["]];

/// The format of a template's tool calls.
pub(super) fn call_format(template: &str, has_token: &dyn Fn(&str) -> bool) -> Option<CallFormat> {
    let has_all = |markers: &[&str]| markers.iter().all(|marker| template.contains(marker));
    if UNSUPPORTED.into_iter().any(has_all) {
        return None;
    }
    first(CALL_RULES, template, has_token)
}

/// The markers of a template's reasoning; harmony has channels instead.
pub(super) fn reasoning_markers(
    template: &str,
    has_token: &dyn Fn(&str) -> bool,
) -> Option<ReasoningMarkers> {
    first(REASONING_RULES, template, has_token)
}
