//! The components of tokenizer.json around its model: normalizers, pre-tokenizers and post-processor. It knows the file's
//! spellings, old and new, not the vocabulary.
//!
//! The `tokenizers` library supplies every component it can without large tables; the few regular expressions that it has
//! no native splitter for run on [`Pattern`].

use std::borrow::Cow;

use serde_json::{Map, Value, json};
use tokenizers::pipeline::{self, Normalizer as _, PipelineTokenizer, PreTokenizer as _};

use super::file::{File, model_kind};
use super::normalize::Normalizer;
use super::pair::{Frame, Pair, run};
use super::pattern::Pattern;
use super::scripts::Scripts;
use super::tokenizer_error;
use crate::Result;

/// The components as the current library spells them; older files are rewritten by its own upgrade pass.
pub(super) struct Components {
    normalizers: Vec<Value>,
    pre_tokenizers: Vec<Value>,
    post_processor: Value,
    /// The vocabulary is written in GPT-2's byte alphabet.
    pub byte_level: bool,
    /// `add_prefix_space` of a ByteLevel pre-tokenizer, which the library leaves to its caller.
    pub prefix_space: bool,
    /// The type of the model.
    pub kind: String,
}

/// Rewrites the components of any file version into the current spelling.
pub(super) fn load_components(file: &mut File) -> Result<Components> {
    let kind = model_kind(file.model)?;
    let mut pre_tokenizer = file.pre_tokenizer.take();
    let prefix_space = take_prefix_space(&mut pre_tokenizer);
    let mut doc = json!({
        "model": { "type": kind },
        "normalizer": file.normalizer.take(),
        "pre_tokenizer": pre_tokenizer,
        "post_processor": file.post_processor.take(),
    });
    tokenizers::canonicalize_value(&mut doc).map_err(|e| tokenizer_error(format!("tokenizer.json: {e}")))?;
    let mut normalizers = Vec::new();
    flatten(doc["normalizer"].take(), "normalizers", &mut normalizers);
    let mut pre_tokenizers = Vec::new();
    flatten(doc["pre_tokenizer"].take(), "pretokenizers", &mut pre_tokenizers);
    Ok(Components {
        normalizers,
        pre_tokenizers,
        post_processor: doc["post_processor"].take(),
        byte_level: doc["model"]["byte_level"] == Value::Bool(true),
        prefix_space,
        kind,
    })
}

/// Switches `add_prefix_space` off in a ByteLevel pre-tokenizer that comes first, and says whether it was on.
fn take_prefix_space(node: &mut Value) -> bool {
    let first = match node.get_mut("pretokenizers").and_then(Value::as_array_mut) {
        Some(members) if members.len() == 1 => members.first_mut(),
        Some(_) => None,
        None => Some(node),
    };
    let Some(first) = first.and_then(Value::as_object_mut) else { return false };
    if first.get("type").and_then(Value::as_str) != Some("ByteLevel") {
        return false;
    }
    first.insert("add_prefix_space".to_owned(), Value::Bool(false)) == Some(Value::Bool(true))
}

/// The members of nested `Sequence`s in order.
fn flatten(node: Value, children: &str, out: &mut Vec<Value>) {
    match node {
        Value::Null => {}
        Value::Object(mut object) if object.get("type").and_then(Value::as_str) == Some("Sequence") => {
            if let Some(Value::Array(members)) = object.remove(children) {
                for member in members {
                    flatten(member, children, out);
                }
            }
        }
        other => out.push(other),
    }
}

/// A tokenizer of the library that has no vocabulary: the carrier of one component.
pub(super) fn frame(slot: &str, value: Value) -> Result<PipelineTokenizer> {
    let mut doc = Map::new();
    doc.insert("version".to_owned(), json!("2.0"));
    doc.insert("model".to_owned(), json!({ "type": "WordLevel", "vocab": {}, "unk_token": "" }));
    doc.insert(slot.to_owned(), value);
    tokenizers::from_json(&Value::Object(doc).to_string())
        .map_err(|e| tokenizer_error(format!("tokenizer.json, {slot}: {e}")))
}

/// One step of normalization.
enum NormalizerStep {
    Library(PipelineTokenizer),
    Own(Normalizer),
    Replace { pattern: Pattern, content: String },
}

/// The normalizers in their order.
#[derive(Default)]
pub(super) struct Normalizers(Vec<NormalizerStep>);

impl Normalizers {
    /// The normalizers of the file, and apart from them what a Metaspace pre-tokenizer does to the text: the forms of
    /// added tokens go through the former only.
    pub fn load(components: &mut Components) -> Result<(Normalizers, Normalizers)> {
        let mut members = std::mem::take(&mut components.normalizers);
        let is_metaspace = |v: &Value| v.get("type").and_then(Value::as_str) == Some("MetaspaceNormalizer");
        let metaspace = match members.last() {
            Some(last) if is_metaspace(last) => members.pop().into_iter().collect(),
            _ => Vec::new(),
        };
        Ok((Self::steps(members)?, Self::steps(metaspace)?))
    }

    fn steps(members: Vec<Value>) -> Result<Normalizers> {
        let mut steps = Vec::new();
        for member in members {
            let regex = member.pointer("/pattern/Regex").and_then(Value::as_str);
            let is_replace = member.get("type").and_then(Value::as_str) == Some("Replace");
            steps.push(match regex {
                Some(regex) if is_replace => NormalizerStep::Replace {
                    pattern: Pattern::new(regex)?,
                    content: member.get("content").and_then(Value::as_str).unwrap_or_default().to_owned(),
                },
                _ => match Normalizer::load(&member)? {
                    Some(own) => NormalizerStep::Own(own),
                    None => NormalizerStep::Library(frame("normalizer", member)?),
                },
            });
        }
        Ok(Normalizers(steps))
    }
}

impl pipeline::Normalizer for Normalizers {
    fn normalize<'a>(&self, input: &'a str, offset: usize) -> tokenizers::Result<Cow<'a, str>> {
        let mut text = Cow::Borrowed(input);
        for step in &self.0 {
            let next = match step {
                NormalizerStep::Library(frame) => {
                    match pipeline::normalize_all(frame.get_normalizers(), &text, offset)? {
                        Cow::Borrowed(same) if same.len() == text.len() => None,
                        changed => Some(changed.into_owned()),
                    }
                }
                NormalizerStep::Own(own) => own.apply(&text),
                NormalizerStep::Replace { pattern, content } => pattern.replace(&text, content)?,
            };
            if let Some(next) = next {
                text = Cow::Owned(next);
            }
        }
        Ok(text)
    }
}

/// One step of splitting.
enum SplitStep {
    Library(PipelineTokenizer),
    Pattern { pattern: Pattern, behavior: tokenizers::SplitDelimiterBehavior, invert: bool },
    Scripts(Scripts),
}

/// The pre-tokenizers in their order.
pub(super) struct Splitters(Vec<SplitStep>);

impl Splitters {
    pub fn load(components: &mut Components) -> Result<Splitters> {
        let members = std::mem::take(&mut components.pre_tokenizers);
        let mut steps = Vec::new();
        let mut run = Vec::new();
        let whole = is_deepseek(&members);
        for member in members {
            match foreign_regex(&member) {
                Some(regex) if !whole => {
                    flush(&mut run, &mut steps)?;
                    steps.push(SplitStep::Pattern {
                        pattern: Pattern::new(regex)?,
                        behavior: behavior(&member)?,
                        invert: member.get("invert").and_then(Value::as_bool).unwrap_or(false),
                    });
                }
                _ if member.get("type").and_then(Value::as_str) == Some("UnicodeScripts") => {
                    flush(&mut run, &mut steps)?;
                    steps.push(SplitStep::Scripts(Scripts::new()));
                }
                _ => run.push(member),
            }
        }
        flush(&mut run, &mut steps)?;
        Ok(Splitters(steps))
    }

    /// Cuts `text` into the stretches that the model sees one by one.
    pub fn split(
        &self,
        text: &str,
        scratch: &mut pipeline::PreTokenizerScratch,
        spans: &mut Vec<pipeline::Span>,
    ) -> tokenizers::Result<()> {
        spans.clear();
        spans.push(pipeline::Span::new(0, text.len() as u32));
        let mut found = Vec::new();
        for step in &self.0 {
            let before = std::mem::take(spans);
            for span in before {
                let Some(part) = text.get(span.range()) else { continue };
                found.clear();
                match step {
                    SplitStep::Library(frame) => frame.get_pre_tokenizer().pre_tokenize(part, scratch, &mut found)?,
                    SplitStep::Pattern { pattern, behavior, invert } => {
                        pipeline::split_matches(&mut found, pattern.segments(part, *invert)?, *behavior);
                    }
                    SplitStep::Scripts(scripts) => scripts.split(part, &mut found),
                }
                spans.extend(found.iter().map(|f| pipeline::Span::new(span.start + f.start, span.start + f.end)));
            }
        }
        Ok(())
    }
}

fn flush(run: &mut Vec<Value>, steps: &mut Vec<SplitStep>) -> Result<()> {
    if !run.is_empty() {
        let members = std::mem::take(run);
        let value = json!({ "type": "Sequence", "pretokenizers": members });
        steps.push(SplitStep::Library(frame("pre_tokenizer", value)?));
    }
    Ok(())
}

/// The regular expression of a `Split` that the library has no native splitter for.
fn foreign_regex(member: &Value) -> Option<&str> {
    let regex = member.pointer("/pattern/Regex").and_then(Value::as_str)?;
    let invert = member.get("invert").and_then(Value::as_bool).unwrap_or(false);
    let native_use = match member.get("behavior").and_then(Value::as_str) {
        Some("Isolated") | None => !invert,
        Some("Removed") => invert,
        _ => false,
    };
    (!native_use || tokenizers::utils::recognize(regex).is_none()).then_some(regex)
}

/// DeepSeek's three expressions are one native splitter together and none of them is alone.
fn is_deepseek(members: &[Value]) -> bool {
    let regex = |i: usize| {
        let member = members.get(i)?;
        let isolated = member.get("behavior").and_then(Value::as_str) == Some("Isolated");
        let invert = member.get("invert").and_then(Value::as_bool).unwrap_or(false);
        member.pointer("/pattern/Regex").and_then(Value::as_str).filter(|_| isolated && !invert)
    };
    members.len() == 3
        && matches!((regex(0), regex(1), regex(2)), (Some(a), Some(b), Some(c)) if tokenizers::utils::is_deepseek(a, b, c))
}

fn behavior(member: &Value) -> Result<tokenizers::SplitDelimiterBehavior> {
    use tokenizers::SplitDelimiterBehavior as B;
    Ok(match member.get("behavior").and_then(Value::as_str) {
        Some("Isolated") | None => B::Isolated,
        Some("Removed") => B::Removed,
        Some("MergedWithPrevious") => B::MergedWithPrevious,
        Some("MergedWithNext") => B::MergedWithNext,
        Some("Contiguous") => B::Contiguous,
        Some(other) => return Err(tokenizer_error(format!("tokenizer.json: unknown split behavior {other:?}"))),
    })
}

/// The tokens that the post-processor puts around one sequence, and around and between two.
pub(super) fn affixes(components: &mut Components) -> Result<Frame> {
    let mut value = components.post_processor.take();
    let whole = frame("post_processor", value.clone());
    let pair = whole.ok().map(|frame| {
        let pair = &frame.get_post_processor().pair;
        let kinds = [u32::from(pair.a_type_id), u32::from(pair.b_type_id.unwrap_or(0))];
        Pair { prefix: run(&pair.prefix), infix: run(&pair.infix), suffix: run(&pair.suffix), kinds }
    });
    if let (None, Some(form)) = (&pair, value.get_mut("pair")) {
        // A form of pairs that cannot be read is no reason to refuse single texts.
        *form = json!([{ "seq": "A", "type_id": 0 }, { "seq": "B", "type_id": 1 }]);
    }
    let frame = frame("post_processor", value)?;
    let single = &frame.get_post_processor().single;
    let ids = |tokens| run(tokens).into_iter().map(|(id, _)| id).collect();
    Ok(Frame { prefix: ids(&single.prefix), suffix: ids(&single.suffix), pair })
}

/// The text of `normalizers` applied to `input`, which starts `offset` bytes into its sequence.
pub(super) fn normalize<'a>(normalizers: &Normalizers, input: &'a str, offset: usize) -> Result<Cow<'a, str>> {
    normalizers.normalize(input, offset).map_err(|e| tokenizer_error(format!("normalization failed: {e}")))
}
