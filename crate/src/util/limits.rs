//! Limits on what comes from a model's files. docs/limits.md lists them with their error codes.

/// Length of a chat template in bytes. Published ones have at most 30 KB.
pub(crate) const MAX_TEMPLATE_BYTES: usize = 512 << 10;
/// Nested expressions and blocks of a chat template.
pub(crate) const MAX_TEMPLATE_NESTING: usize = 100;
/// Nested evaluations of a chat template, macro calls included: the stack of a page has 1 MB.
pub(crate) const MAX_TEMPLATE_FRAMES: usize = 400;
/// Steps of one rendering: expressions evaluated, items visited, and text by its length.
pub(crate) const MAX_TEMPLATE_STEPS: u64 = 10_000_000;
/// Bytes that the values of one rendering hold at a time, its output included.
pub(crate) const MAX_TEMPLATE_MEMORY: usize = 64 << 20;
/// Length in bytes of one string of a rendering, its output included.
pub(crate) const MAX_TEMPLATE_TEXT: usize = 16 << 20;
/// Nested lists and mappings of one value, and of messages, tools and template variables.
pub(crate) const MAX_VALUE_NESTING: usize = 200;
/// Items of `range()`, as in Jinja's sandbox.
pub(crate) const MAX_RANGE_ITEMS: i64 = 100_000;
/// Width and precision of a formatted value.
pub(crate) const MAX_FORMAT_WIDTH: usize = 10_000;
/// Length of the format of `strftime_now` in bytes.
pub(crate) const MAX_STRFTIME_BYTES: usize = 1024;

/// Normalizers, pre-tokenizers, post-processors or decoders of a tokenizer.
pub(crate) const MAX_TOKENIZER_STAGES: usize = 64;
/// Steps that regular expressions and models take for one text, and for each byte of it.
/// Expressions in real files take tens of steps a byte.
pub(crate) const MAX_ENCODE_STEPS: u64 = 1 << 20;
pub(crate) const MAX_ENCODE_STEPS_PER_BYTE: u64 = 500;
/// Steps for one text of any length.
pub(crate) const MAX_ENCODE_STEPS_IN_ALL: u64 = 1 << 28;
/// Bytes that normalizers may add to one text, and for each byte of it. Unicode's longest
/// expansion is 11-fold.
pub(crate) const MAX_NORMALIZED_BYTES: usize = 1 << 20;
pub(crate) const MAX_NORMALIZED_BYTES_PER_BYTE: usize = 64;
/// How many times longer the decoders of a tokenizer may make a token.
pub(crate) const MAX_DECODER_GROWTH: f64 = 16.0;
/// Characters that a `Strip` decoder may remove.
pub(crate) const MAX_STRIPPED_CHARS: u64 = 1024;
/// Length of an added token in bytes.
pub(crate) const MAX_ADDED_TOKEN_BYTES: usize = 1024;
/// Length of what BPE and WordPiece put around the characters of a word, in bytes.
pub(crate) const MAX_AFFIX_BYTES: usize = 256;
/// Special tokens that a post-processor puts around a text.
pub(crate) const MAX_TEMPLATE_TOKENS: usize = 1024;
/// Ids that end a text.
pub(crate) const MAX_EOS_TOKENS: usize = 1024;
/// Length of each part of tokenizer.json but its model and its added tokens, in bytes.
pub(crate) const MAX_TOKENIZER_PART_BYTES: usize = 4 << 20;
/// Length of a JSON file of a model in bytes.
pub(crate) const MAX_CONFIG_BYTES: u64 = 16 << 20;
/// Length of tokenizer_config.json, added_tokens.json and special_tokens_map.json in bytes.
pub(crate) const MAX_TOKENIZER_CONFIG_BYTES: u64 = 32 << 20;
/// Length of tokenizer.json, of a weights' index and of any other file that is read as a whole, in
/// bytes.
pub(crate) const MAX_WHOLE_FILE_BYTES: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    /// Every limit has a row in the documentation.
    #[test]
    fn limits_are_documented() {
        let documentation = include_str!("../../../docs/limits.md");
        let source = include_str!("limits.rs");
        let names: Vec<&str> = source
            .lines()
            .filter_map(|line| line.strip_prefix("pub(crate) const "))
            .filter_map(|line| line.split(':').next())
            .collect();
        assert!(names.len() > 20, "{}", names.len());
        for name in names {
            assert!(documentation.contains(&format!("`{name}`")), "{name}");
        }
    }
}
