//! Tokenizer and chat template of a checkpoint, and the files they are built from.

use crate::chat::{self, AnswerFormat};
use crate::exec::ModelFiles;
use crate::format::gguf::Gguf;
use crate::format::mlc_chat;
use crate::hub::{FileForm, Source};
use crate::text::{
    COMPACT_VERSION, ChatInput, ChatTemplate, SlowTokenizerFiles, Tokenizer, TokenizerFiles,
    is_compact,
};
use crate::{Error, Result};
use futures_util::future::{try_join, try_join3};
use serde_json::Value;
use std::pin::Pin;

/// Tokenizer and chat template.
#[derive(Debug, Default)]
pub struct TextPipeline {
    pub(super) tokenizer: Option<Tokenizer>,
    template: Option<ChatTemplate>,
    /// A vocabulary file of an unsupported format, if there is no tokenizer.
    unsupported: Option<String>,
}

/// Endings of the names of vocabulary files whose formats are not supported.
const UNSUPPORTED_VOCABULARIES: [&str; 7] = [
    ".spm",
    ".tiktoken",
    "bpe.codes",
    "sentencepiece.model",
    "spm_char.model",
    "tekken.json",
    "tiktoken.model",
];

/// Returns a vocabulary file of an unsupported format: one of the list, or one that Mistral names by
/// its version (tokenizer.model.v3).
fn unsupported_vocabulary(names: Vec<String>) -> Option<String> {
    names.into_iter().find(|name| {
        let in_folder = name.contains('/');
        let is_versioned = name.starts_with("tokenizer.model.");
        !in_folder
            && (is_versioned
                || UNSUPPORTED_VOCABULARIES
                    .iter()
                    .any(|end| name.ends_with(end)))
    })
}

impl TextPipeline {
    /// Loads only tokenizer and chat template, from a folder or a GGUF file. Needs no weights and
    /// no known architecture.
    ///
    /// # Errors
    /// `Tokenizer` if there is none or it cannot be used.
    pub async fn open(source: &Source) -> Result<TextPipeline> {
        let mut files = TokenizerSources::default();
        if source.gguf().is_none() {
            files = TokenizerSources::from_source(source)
                .await?
                .with_mlc_chat_config(source)
                .await?;
        }
        if files.tokenizer.is_none()
            && let Some(gguf) = ModelFiles::gguf_header(source).await?
        {
            files = TokenizerSources::from_gguf(&gguf)?;
        }
        let parts = files.build(source)?;
        parts.tokenizer()?;
        Ok(parts)
    }

    /// Returns the warning of a load without a tokenizer.
    pub(super) fn warning(&self) -> Option<String> {
        self.tokenizer.is_none().then(|| {
            let reason = self.missing_tokenizer();
            format!("Text input and output are not available: {reason}.")
        })
    }

    /// Returns cause and advice for a checkpoint without a tokenizer: a warning at load, an error
    /// where text is given.
    fn missing_tokenizer(&self) -> String {
        match &self.unsupported {
            Some(file) => format!(
                "the format of {file:?} is not supported. Add the tokenizer.json that transformers' `save_pretrained` \
                 writes for this model, load a repository that has it, or use token ids"
            ),
            None => "there is no tokenizer.json, tokenizer.model, vocab.json with merges.txt, or vocab.txt. Add one \
                     of these files, or use token ids"
                .to_owned(),
        }
    }

    /// Returns the tokenizer.
    ///
    /// # Errors
    /// `Tokenizer` if the checkpoint has none; it then accepts token ids only.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().ok_or_else(|| Error::Tokenizer {
            reason: self.missing_tokenizer(),
        })
    }

    /// Whether there is a chat template.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// Text of the chat template; empty without one.
    pub(crate) fn template_source(&self) -> &str {
        self.template.as_ref().map_or("", ChatTemplate::source)
    }

    /// How the model writes reasoning and tool calls.
    pub fn answer_format(&self) -> AnswerFormat {
        let has_token = |token: &str| {
            let tokenizer = self.tokenizer.as_ref();
            tokenizer.is_some_and(|t| t.token_to_id(token).is_some())
        };
        AnswerFormat::detect(self.template_source(), &has_token)
    }

    /// Renders a conversation as a prompt.
    ///
    /// # Errors
    /// `ChatTemplate` if there is none or the template raises an error.
    pub fn render(&self, input: &ChatInput) -> Result<crate::text::RenderedPrompt> {
        let reason = "this model has no chat template: it is a base model. Use generate with a prompt instead";
        let template = self.template.as_ref().ok_or_else(|| Error::ChatTemplate {
            reason: reason.into(),
        })?;
        let tokenizer = self.tokenizer()?;
        let render = |input: &ChatInput| {
            template.render(
                input,
                tokenizer.special_tokens(),
                tokenizer.special_spellings(),
            )
        };
        let mut input = input.clone();
        let markers = chat::adapt_messages(
            template.source(),
            self.answer_format().calls(),
            &mut input.messages,
            input.tools.as_deref(),
        );
        let mut prompt = match render(&input) {
            // Some templates take arguments of calls as text.
            Err(error) if chat::stringify_arguments(&mut input.messages) => {
                render(&input).map_err(|_| error)?
            }
            prompt => prompt?,
        };
        for (mark, texts) in markers.replacements() {
            prompt.replace(mark, texts);
        }
        Ok(prompt)
    }

    /// Whether the template accepts message content only as a list of parts.
    pub(super) fn needs_content_parts(&self) -> bool {
        self.template
            .as_ref()
            .is_some_and(|template| !template.accepts_string_content())
    }
}

/// tokenizer.json of a folder, read in its compact form once that is stored.
pub(crate) const TOKENIZER_FORM: FileForm = FileForm {
    file: "tokenizer.json",
    name: "tokenizer",
    version: COMPACT_VERSION,
};

/// The other files that the tokenizer and the chat template of every folder are read from, if it has them.
#[cfg(all(target_arch = "wasm32", feature = "engine-api"))]
pub(crate) const TEXT_FILES: [&str; 3] = [
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
];

/// A file being read. Boxed in its own function: several joined futures would overflow a page's
/// stack.
type FileRead<'a> = Pin<Box<dyn Future<Output = Result<Option<Vec<u8>>>> + 'a>>;

#[inline(never)]
fn reading<'a>(source: &'a Source, name: &'a str) -> FileRead<'a> {
    Box::pin(source.read_optional(name))
}

/// Converts the files of a slow tokenizer to tokenizer.json.
async fn convert_slow_tokenizer(
    source: &Source,
    tokenizer_config: Option<&[u8]>,
    special_tokens_map: Option<&[u8]>,
) -> Result<Option<Vec<u8>>> {
    let read = |name| reading(source, name);
    let (vocab, merges, word_pieces) =
        try_join3(read("vocab.json"), read("merges.txt"), read("vocab.txt")).await?;
    let mut sentencepiece = None;
    for name in [
        "tokenizer.model",
        "spiece.model",
        "sentencepiece.bpe.model",
        "spm.model",
    ] {
        if sentencepiece.is_none() && vocab.is_none() {
            sentencepiece = read(name).await?;
        }
    }
    if vocab.is_none() && word_pieces.is_none() && sentencepiece.is_none() {
        return Ok(None);
    }
    let (added_tokens, config) = try_join(read("added_tokens.json"), read("config.json")).await?;
    let config: Value = config
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    let files = SlowTokenizerFiles {
        vocab: vocab.as_deref(),
        merges: merges.as_deref(),
        word_pieces: word_pieces.as_deref(),
        sentencepiece: sentencepiece.as_deref(),
        added_tokens: added_tokens.as_deref(),
        tokenizer_config,
        special_tokens_map,
        model_type: config.get("model_type").and_then(Value::as_str),
    };
    Ok(files.to_tokenizer_json()?.map(String::into_bytes))
}

/// Raw files of the tokenizer and the chat template.
#[derive(Default)]
pub(super) struct TokenizerSources {
    tokenizer: Option<Vec<u8>>,
    /// Whether `tokenizer` has a compact form that the next load can read.
    keeps_form: bool,
    pub(super) tokenizer_config: Option<Vec<u8>>,
    special_tokens_map: Option<Vec<u8>>,
    pub(super) generation_config: Option<Vec<u8>>,
    jinja: Option<Vec<u8>>,
    template_json: Option<Vec<u8>>,
    /// A vocabulary file of an unsupported format, if `tokenizer` is `None`.
    unsupported: Option<String>,
}

impl TokenizerSources {
    pub(super) async fn from_source(source: &Source) -> Result<Self> {
        let read = |name| reading(source, name);
        // Browsers report each missing file of a folder in the console, so a file that another one
        // replaces is not requested. As in transformers, special_tokens_map.json counts only
        // without `added_tokens_decoder`.
        let named_tokens = async {
            let config = read("tokenizer_config.json").await?;
            let has_tokens = config
                .as_deref()
                .and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok())
                .is_some_and(|config| config["added_tokens_decoder"].is_object());
            let map = match has_tokens {
                true => None,
                false => read("special_tokens_map.json").await?,
            };
            Ok((config, map))
        };
        let template = async {
            let jinja = read("chat_template.jinja").await?;
            let json = match jinja {
                Some(_) => None,
                None => read("chat_template.json").await?,
            };
            Ok((jinja, json))
        };
        let tokenizer = Box::pin(source.read_form(TOKENIZER_FORM));
        let others = try_join(tokenizer, read("generation_config.json"));
        let (
            (tokenizer, generation_config),
            (tokenizer_config, mut special_tokens_map),
            (jinja, template_json),
        ) = try_join3(others, named_tokens, template).await?;
        let is_file = tokenizer.as_ref().is_some_and(|bytes| !is_compact(bytes));
        let keeps_form = is_file && source.keeps_form(TOKENIZER_FORM).await;
        let tokenizer = match tokenizer {
            Some(bytes) => Some(bytes),
            None => {
                let config = tokenizer_config.as_deref();
                let map = special_tokens_map.take();
                Box::pin(convert_slow_tokenizer(source, config, map.as_deref())).await?
            }
        };
        let unsupported = match tokenizer {
            Some(_) => None,
            None => unsupported_vocabulary(source.list().await.unwrap_or_default()),
        };
        Ok(Self {
            tokenizer,
            keeps_form,
            tokenizer_config,
            special_tokens_map,
            generation_config,
            jinja,
            template_json,
            unsupported,
        })
    }

    /// Fills in the chat template and generation defaults from mlc-chat-config.json of an MLC
    /// repository.
    pub(super) async fn with_mlc_chat_config(mut self, source: &Source) -> Result<Self> {
        let Some(chat) = source.read_optional("mlc-chat-config.json").await? else {
            return Ok(self);
        };
        let found = mlc_chat::parse_chat_settings(&String::from_utf8_lossy(&chat))?;
        if ChatTemplate::load(
            self.jinja.as_deref(),
            self.template_json.as_deref(),
            self.tokenizer_config.as_deref(),
        )?
        .is_none()
        {
            self.jinja = found.template.map(String::into_bytes);
        }
        if self.generation_config.is_none() {
            self.generation_config = Some(found.generation.to_string().into_bytes());
        }
        Ok(self)
    }

    /// Builds the tokenizer and the chat template.
    pub(super) fn build(self, source: &Source) -> Result<TextPipeline> {
        let config = self.tokenizer_config.as_deref();
        let template =
            ChatTemplate::load(self.jinja.as_deref(), self.template_json.as_deref(), config)?;
        let files = self.tokenizer.as_deref().map(|tokenizer| TokenizerFiles {
            tokenizer,
            tokenizer_config: config,
            special_tokens_map: self.special_tokens_map.as_deref(),
            generation_config: self.generation_config.as_deref(),
        });
        let tokenizer = match files {
            Some(files) if self.keeps_form => {
                let (tokenizer, compact) = Tokenizer::load_and_compact(files)?;
                source.keep_form(TOKENIZER_FORM, compact);
                Some(tokenizer)
            }
            files => files.map(Tokenizer::load).transpose()?,
        };
        Ok(TextPipeline {
            tokenizer,
            template,
            unsupported: self.unsupported,
        })
    }

    /// Returns `pad_token` of tokenizer_config.json.
    pub(super) fn pad_token(&self) -> Option<String> {
        let config: Value = serde_json::from_slice(self.tokenizer_config.as_deref()?).ok()?;
        let token = config.get("pad_token")?;
        token
            .as_str()
            .or_else(|| token.get("content")?.as_str())
            .map(str::to_string)
    }

    /// Builds the same files from the metadata of a GGUF file.
    pub(super) fn from_gguf(gguf: &Gguf) -> Result<Self> {
        let tokenizer = match gguf.has_tokenizer() {
            true => Some(gguf.tokenizer()?.to_string().into_bytes()),
            false => None,
        };
        Ok(Self {
            tokenizer,
            tokenizer_config: Some(gguf.tokenizer_config().to_string().into_bytes()),
            generation_config: Some(gguf.generation_config().to_string().into_bytes()),
            ..Self::default()
        })
    }
}
