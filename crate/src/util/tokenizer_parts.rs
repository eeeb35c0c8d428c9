//! Parts of tokenizer.json as JSON text, for tokenizers that are converted from other files.

use serde_json::{Value, json};

/// The space in SentencePiece pieces.
pub const SPM_SPACE: &str = "\u{2581}";
/// Removes the space before a decoded text.
pub const STRIP: &str = r#"{"type":"Strip","content":" ","start":1,"stop":0}"#;

/// A string as JSON text.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// BERT's normalizer, which always removes control characters.
pub fn bert_normalizer(chinese: bool, strip_accents: &Value, lowercase: bool) -> String {
    format!(
        r#"{{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":{chinese},"strip_accents":{strip_accents},"lowercase":{lowercase}}}"#
    )
}

/// A `Sequence` of parts; `children` is the name of their list.
pub fn sequence_of(children: &str, members: &[String]) -> String {
    format!(
        r#"{{"type":"Sequence","{children}":[{}]}}"#,
        members.join(",")
    )
}

/// A sequence of a template, with the tokens around it.
pub fn sequence(first: &[String], seq: &str, last: &[String], kind: u32) -> String {
    let token = |token: &String| format!(r#"{{"token":{},"type_id":{kind}}}"#, quoted(token));
    let mut all: Vec<String> = first.iter().map(token).collect();
    all.push(format!(r#"{{"seq":"{seq}","type_id":{kind}}}"#));
    all.extend(last.iter().map(token));
    all.join(",")
}

/// The template of a sequence, and of a pair: one sequence after the other.
pub fn template(first: &str, second: &str) -> String {
    format!(r#"{{"type":"TemplateProcessing","single":[{first}],"pair":[{first},{second}]}}"#)
}

/// Metaspace that puts a space before a text as `scheme` says.
pub fn metaspace(scheme: &str) -> String {
    format!(r#"{{"type":"Metaspace","replacement":"{SPM_SPACE}","prepend_scheme":"{scheme}"}}"#)
}

/// Metaspace that does not split at spaces.
pub fn whole_metaspace(scheme: &str) -> String {
    let metaspace = metaspace(scheme);
    metaspace.replace('}', r#","split":false}"#)
}

/// Splits before and behind each match.
pub fn split_regex(regex: &str) -> String {
    let regex = quoted(regex);
    format!(r#"{{"type":"Split","pattern":{{"Regex":{regex}}},"behavior":"Isolated"}}"#)
}

/// Replaces spaces by SentencePiece's space.
pub fn space_normalizer() -> String {
    replace("String", " ", SPM_SPACE)
}

/// Decodes SentencePiece's spaces, its bytes if the model has them, and strips the space that was
/// added before the text.
pub fn bytes_decoder(bytes: bool, strip: bool) -> String {
    let mut all = vec![replace("String", SPM_SPACE, " ")];
    let mut add = |part: &str| all.push(part.to_owned());
    if bytes {
        add(r#"{"type":"ByteFallback"}"#);
    }
    if bytes || strip {
        add(r#"{"type":"Fuse"}"#);
    }
    if strip {
        add(STRIP);
    }
    sequence_of("decoders", &all)
}

/// Replaces several spaces by one.
pub fn join_spaces() -> String {
    replace("Regex", " {2,}", " ")
}

/// Replaces a `String` or a `Regex`.
pub fn replace(kind: &str, pattern: &str, content: &str) -> String {
    let pattern = quoted(pattern);
    format!(r#"{{"type":"Replace","pattern":{{"{kind}":{pattern}}},"content":"{content}"}}"#)
}

/// A Unigram model of pieces and their scores.
pub fn unigram(vocab: &[(&str, f64)], unk: usize, byte_fallback: bool) -> String {
    let vocab = json!(vocab);
    format!(
        r#"{{"type":"Unigram","unk_id":{unk},"byte_fallback":{byte_fallback},"vocab":{vocab}}}"#
    )
}
