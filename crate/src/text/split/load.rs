//! Reads the pre-tokenizers of tokenizer.json.

use bitcannon::regexes;
use serde_json::Value;

use super::{NativeSplitter, PreTokenizerStep, PreTokenizers, PrependScheme, SplitBehavior};
use crate::Result;
use crate::text::components::{field, flatten, switch};
use crate::text::regex::{Regex, is_punctuation};
use crate::text::scripts::ScriptTable;
use crate::text::tokenizer_error;

impl PreTokenizers {
    /// Reads `pre_tokenizer` of tokenizer.json. If `model_knows_bytes`, the model does the mapping
    /// of a final ByteLevel.
    pub fn load(node: &Value, model_knows_bytes: bool) -> Result<PreTokenizers> {
        let mut members = Vec::new();
        flatten(node, "pretokenizers", 0, &mut members)?;
        let mut steps = Vec::new();
        let mut rest = members.as_slice();
        if let [a, b, c, others @ ..] = rest
            && let (Some(a), Some(b), Some(c)) = (isolated(a), isolated(b), isolated(c))
            && is_deepseek(a, b, c)
        {
            steps.push(PreTokenizerStep::Native(NativeSplitter::DeepSeek));
            rest = others;
        }
        for member in rest {
            load_step(member, &mut steps)?;
        }
        let byte_level =
            model_knows_bytes && matches!(steps.last(), Some(PreTokenizerStep::Alphabet));
        if byte_level {
            steps.pop();
        }
        Ok(PreTokenizers { steps, byte_level })
    }
}

/// Returns the expression of a `Split` with behavior Isolated.
fn isolated(member: &Value) -> Option<&str> {
    let plain = member.get("behavior").and_then(Value::as_str) == Some("Isolated")
        && !switch(member, "invert", false);
    member
        .pointer("/pattern/Regex")
        .and_then(Value::as_str)
        .filter(|_| plain)
}

/// Whether these are DeepSeek's three expressions, which only together are a native splitter. The
/// third has literal line ends where bitcannon's text has escapes.
fn is_deepseek(a: &str, b: &str, c: &str) -> bool {
    let big = regexes::DEEPSEEK_BIG.replace(r"\r\n", "\r\n");
    a == regexes::DEEPSEEK_NUM
        && b == "[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+"
        && c == big
}

/// Returns the native splitter of an expression.
fn native(regex: &str) -> Option<NativeSplitter> {
    Some(match regex {
        regexes::GPT2 => NativeSplitter::Gpt2,
        regexes::CL100K => NativeSplitter::Cl100k,
        regexes::O200K => NativeSplitter::O200k,
        regexes::TEKKEN => NativeSplitter::Tekken,
        regexes::KIMI_K2 => NativeSplitter::Kimi,
        _ if regexes::CL100K.replace("{1,3}", "") == regex => NativeSplitter::Qwen,
        _ => return None,
    })
}

fn load_step(entry: &Value, steps: &mut Vec<PreTokenizerStep>) -> Result<()> {
    let chars = |are, behavior| PreTokenizerStep::Chars { are, behavior };
    let kind = entry
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let step = match kind {
        "Split" => load_split(entry)?,
        "ByteLevel" => {
            if switch(entry, "add_prefix_space", false) {
                steps.push(PreTokenizerStep::PrefixSpace);
            }
            if switch(entry, "use_regex", true) {
                steps.push(PreTokenizerStep::Native(NativeSplitter::Gpt2));
            }
            PreTokenizerStep::Alphabet
        }
        "Metaspace" => load_metaspace(entry)?,
        "BertPreTokenizer" => {
            steps.push(chars(char::is_whitespace, SplitBehavior::Removed));
            chars(is_punctuation, SplitBehavior::Isolated)
        }
        "Whitespace" => PreTokenizerStep::Pattern {
            pattern: Regex::new(r"\w+|[^\w\s]+")?,
            behavior: SplitBehavior::Removed,
            invert: true,
        },
        "WhitespaceSplit" => chars(char::is_whitespace, SplitBehavior::Removed),
        "Punctuation" => chars(is_punctuation, behavior(entry)?),
        "Digits" => {
            let apart = switch(entry, "individual_digits", false);
            chars(
                char::is_numeric,
                if apart {
                    SplitBehavior::Isolated
                } else {
                    SplitBehavior::Contiguous
                },
            )
        }
        "CharDelimiterSplit" => {
            let text = single_char(entry, "/delimiter")?.to_string();
            PreTokenizerStep::Literal {
                text,
                behavior: SplitBehavior::Removed,
                invert: false,
            }
        }
        "FixedLength" => {
            let length = entry
                .get("length")
                .map_or(Some(5), Value::as_u64)
                .filter(|length| *length > 0);

            PreTokenizerStep::Length(length.ok_or_else(|| {
                tokenizer_error("tokenizer.json: FixedLength has no usable `length`")
            })? as usize)
        }
        "UnicodeScripts" => PreTokenizerStep::Scripts(ScriptTable::new()),
        other => {
            return Err(tokenizer_error(format!(
                "tokenizer.json: the pre-tokenizer {other:?} is not supported"
            )));
        }
    };
    steps.push(step);
    Ok(())
}

fn single_char(entry: &Value, at: &str) -> Result<char> {
    let text = field(entry, at)?;
    let mut chars = text.chars();
    let only = chars.next().filter(|_| chars.next().is_none());
    only.ok_or_else(|| {
        tokenizer_error(format!(
            "tokenizer.json: {at} must be one character, not {text:.40?}"
        ))
    })
}

fn load_split(entry: &Value) -> Result<PreTokenizerStep> {
    let behavior = behavior(entry)?;
    let invert = switch(entry, "invert", false);

    let Some(regex) = entry.pointer("/pattern/Regex").and_then(Value::as_str) else {
        let text = field(entry, "/pattern/String")?.to_owned();
        if text.is_empty() {
            return Err(tokenizer_error(
                "tokenizer.json: a Split has an empty pattern",
            ));
        }
        return Ok(PreTokenizerStep::Literal {
            text,
            behavior,
            invert,
        });
    };
    // A pattern that covers the whole text leaves no gaps, so these behaviors are equal.
    let whole = matches!(
        (behavior, invert),
        (SplitBehavior::Isolated, false) | (SplitBehavior::Removed, true)
    );
    Ok(match native(regex).filter(|_| whole) {
        Some(native) => PreTokenizerStep::Native(native),
        None => PreTokenizerStep::Pattern {
            pattern: Regex::new(regex)?,
            behavior,
            invert,
        },
    })
}

fn load_metaspace(entry: &Value) -> Result<PreTokenizerStep> {
    let scheme = match entry
        .get("prepend_scheme")
        .filter(|scheme| !scheme.is_null())
        .map(Value::as_str)
    {
        None | Some(Some("always")) => PrependScheme::Always,
        Some(Some("first")) => PrependScheme::First,
        Some(Some("never")) => PrependScheme::Never,
        Some(_) => {
            return Err(tokenizer_error(
                "tokenizer.json: the `prepend_scheme` of a Metaspace must be always, first or never",
            ));
        }
    };
    // Older files have `add_prefix_space` instead of a scheme: whether a space comes first.
    if !switch(entry, "add_prefix_space", true)
        && scheme != PrependScheme::Never
        && entry.get("prepend_scheme").is_some()
    {
        return Err(tokenizer_error(
            "tokenizer.json: `add_prefix_space` of a Metaspace contradicts its `prepend_scheme`",
        ));
    }
    let scheme = if switch(entry, "add_prefix_space", true) {
        scheme
    } else {
        PrependScheme::Never
    };
    Ok(PreTokenizerStep::Metaspace {
        replacement: single_char(entry, "/replacement")?,
        scheme,
        split: switch(entry, "split", true),
    })
}

fn behavior(entry: &Value) -> Result<SplitBehavior> {
    Ok(
        match entry
            .get("behavior")
            .map_or(Some("Isolated"), Value::as_str)
        {
            Some("Isolated") => SplitBehavior::Isolated,
            Some("Removed") => SplitBehavior::Removed,
            Some("MergedWithPrevious") => SplitBehavior::MergedWithPrevious,
            Some("MergedWithNext") => SplitBehavior::MergedWithNext,
            Some("Contiguous") => SplitBehavior::Contiguous,
            other => {
                return Err(tokenizer_error(format!(
                    "tokenizer.json: the split behavior {other:?} is not supported"
                )));
            }
        },
    )
}
