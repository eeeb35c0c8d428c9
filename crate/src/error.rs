//! The error type of the engine. Every variant has a stable code for JavaScript, and a message that
//! says what to do.

use thiserror::Error;

/// Result of every fallible function of the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn nearest_suffix(names: &str) -> String {
    if names.is_empty() {
        String::new()
    } else {
        format!("; the nearest supported: {names}")
    }
}

/// Whether a file belongs to a repository of a Hub, not to a folder of a web server.
fn is_on_hub(url: &str) -> bool {
    url.contains("/resolve/") || url.contains("/api/models/")
}

fn not_found_advice(url: &str) -> &'static str {
    if is_on_hub(url) {
        "Check the names of repository, revision and file; private repositories also answer 404 without a token."
    } else {
        "Check the folder's address, and that the server has the model's files there."
    }
}

/// The part of a message that advises a call of a page, for hosts that name it otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advice {
    /// What it is about: `source` of a model, `token` of the Hub, `server_token` of another server.
    pub about: &'static str,
    /// The part of the message.
    pub text: &'static str,
}

const SOURCE_ADVICE: Advice = Advice {
    about: "source",
    text: "files selected by the user",
};
const TOKEN_ADVICE: Advice = Advice {
    about: "token",
    text: "loadModel(name, { token })",
};
const SERVER_TOKEN_ADVICE: Advice = Advice {
    about: "server_token",
    text: "loadModel(url, { token })",
};

fn gated_advice(url: &str, status: u16) -> String {
    if is_on_hub(url) {
        format!(
            "is gated (HTTP {status}). Accept the model's terms on its page, then pass a token with read access: {}.",
            TOKEN_ADVICE.text
        )
    } else {
        format!(
            "refuses access (HTTP {status}). Make the folder readable, or pass a token that its server accepts: {}.",
            SERVER_TOKEN_ADVICE.text
        )
    }
}

/// Errors and warnings, grouped by the part of the engine that reports them.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum Error {
    // ---- hub: names, network, cache
    // -------------------------------------------------------------------------------
    /// A model name that is neither `org/name`, a URL nor a list of files.
    #[error(
        "'{name}' is not a model name: {reason}. Use 'org/name', the URL of a folder, or {}.",
        SOURCE_ADVICE.text
    )]
    ModelName {
        /// The name given by the caller.
        name: String,
        /// Why it is not a model name.
        reason: String,
    },
    /// The server has no such repository, revision or file.
    #[error(
        "{url} was not found ({answer}). {}",
        not_found_advice(.url)
    )]
    NotFound {
        /// The requested URL.
        url: String,
        /// The server's answer: an HTTP status, or a page instead of the file.
        answer: String,
    },
    /// The server requires a token, or refuses the one given.
    #[error(
        "{url} {}",
        gated_advice(.url, *.status)
    )]
    Gated {
        /// The requested URL.
        url: String,
        /// HTTP status, 401 or 403.
        status: u16,
    },
    /// The network failed, and retrying did not help.
    #[error("downloading {url} failed: {reason}. Load the model again to resume the download.")]
    Network {
        /// The requested URL.
        url: String,
        /// Message of the last attempt.
        reason: String,
    },
    /// The server never answered.
    #[error("{url} cannot be reached: {reason}.")]
    Unreachable {
        /// The requested URL.
        url: String,
        /// Message of the last attempt.
        reason: String,
    },
    /// A file changed while it was being loaded.
    #[error("{file} changed on the server during the download. Load the model again.")]
    Changed {
        /// The file with its repository or folder.
        file: String,
    },
    /// Warning: the cache is used, although it could not be checked for updates.
    #[error("could not check {location} for updates; using the cached copy. {reason}")]
    Unverified {
        /// The repository or folder.
        location: String,
        /// Message of the failed check.
        reason: String,
    },
    /// Warning: downloaded files are used without a comparison with the Hub's checksums.
    #[error(
        "the download of {location} was not compared with the Hub's checksums: {reason}. If the output is wrong, delete the model from the cache and load it again."
    )]
    Unchecked {
        /// The repository.
        location: String,
        /// Why there were no checksums.
        reason: String,
    },
    /// Warning: there is no cache, or it is not writable.
    #[error(
        "the cache is not available: {reason}. The model runs, but will be downloaded again next time."
    )]
    Cache {
        /// Message of the browser or the operating system.
        reason: String,
    },
    /// Stored models cannot be listed or removed.
    #[error(
        "the cache cannot be {action}: {reason}. Close other tabs of this site and try again; if that does not help, clear the site's data in the browser's settings."
    )]
    CacheAccess {
        /// What was tried: "listed" or "changed".
        action: &'static str,
        /// Message of the browser or the operating system.
        reason: String,
    },
    /// The caller aborted.
    #[error("{what} was aborted")]
    Aborted {
        /// The aborted operation.
        what: String,
    },
    /// The model lacks a required file.
    #[error("{file} is missing from {location}. {hint}")]
    MissingFile {
        /// The file's name.
        file: String,
        /// The repository or folder.
        location: String,
        /// What to do.
        hint: String,
    },

    // ---- format: containers and encodings
    // -------------------------------------------------------------------------
    /// A file violates the format of its container.
    #[error(
        "{file} is not a valid {format} file: {reason}. Download it again; if that does not help, the file on the server is damaged."
    )]
    Malformed {
        /// The file.
        file: String,
        /// safetensors, gguf, …
        format: &'static str,
        /// The violated rule, with numbers.
        reason: String,
    },
    /// A file that another download does not correct: of another version, renamed, or a pointer.
    #[error("{file} cannot be read: {reason}. {hint}")]
    UnusableFile {
        /// The file.
        file: String,
        /// What it is instead.
        reason: String,
        /// What to do.
        hint: String,
    },
    /// An unsupported element type or weight encoding.
    #[error("tensor {tensor} is stored as {encoding}, which is not supported. {hint}")]
    UnsupportedEncoding {
        /// The tensor's name.
        tensor: String,
        /// The encoding's name.
        encoding: String,
        /// What to use instead.
        hint: String,
    },
    /// The checkpoint lacks a tensor that the architecture needs.
    #[error(
        "the checkpoint has no tensor {tensor}, required by {architecture}. It is incomplete, or config.json names the wrong architecture."
    )]
    MissingTensor {
        /// The tensor's name.
        tensor: String,
        /// The architecture.
        architecture: String,
    },
    /// A tensor whose shape differs from the shape that config.json implies.
    #[error(
        "tensor {tensor} has shape {found:?}, but config.json requires {expected:?}. Use weights and config.json of the same checkpoint."
    )]
    Shape {
        /// The tensor's name.
        tensor: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape that config.json implies.
        expected: Vec<usize>,
    },

    // ---- config and architecture
    // ----------------------------------------------------------------------------------
    /// A JSON file that is invalid or lacks a field.
    #[error("{file}: {reason}")]
    Config {
        /// The file.
        file: String,
        /// What is wrong, with the name of the field.
        reason: String,
    },
    /// An unknown architecture.
    #[error(
        "the architecture '{name}' is not supported{}. Supported models: {}#what-runs", nearest_suffix(.nearest), env!("CARGO_PKG_REPOSITORY")
    )]
    UnknownArchitecture {
        /// `architectures[0]` or `model_type` of config.json.
        name: String,
        /// The names of similar supported architectures; empty if there are none.
        nearest: String,
    },
    /// A supported architecture with an unsupported option.
    #[error("{architecture}: {option} is not supported. {hint}")]
    UnsupportedOption {
        /// The architecture.
        architecture: String,
        /// The option with its value.
        option: String,
        /// What to use instead.
        hint: String,
    },

    // ---- text
    // -----------------------------------------------------------------------------------------------------
    /// The tokenizer cannot be read or used.
    #[error("the tokenizer cannot be used: {reason}")]
    Tokenizer {
        /// What is wrong.
        reason: String,
    },
    /// The chat template failed, or raised an exception.
    #[error("the chat template failed: {reason}")]
    ChatTemplate {
        /// The template's message, with its line.
        reason: String,
    },

    // ---- device
    // ---------------------------------------------------------------------------------------------------
    /// There is no WebGPU, or no adapter.
    #[error("WebGPU is not available: {reason}. {hint}")]
    NoWebGpu {
        /// What was tried, and the message that came back.
        reason: String,
        /// What to do in this browser.
        hint: String,
    },
    /// The device rejected a shader or a pipeline.
    #[error("the GPU rejected kernel {kernel}: {reason}")]
    Kernel {
        /// The kernel with its variant.
        kernel: String,
        /// The device's message.
        reason: String,
    },
    /// The device has too little memory for a request.
    #[error("{what} needs {needed} bytes, but only {limit} are allowed. {hint}")]
    OutOfMemory {
        /// What needs the memory.
        what: String,
        /// Requested bytes.
        needed: u64,
        /// Available bytes, or the limit that was exceeded.
        limit: u64,
        /// What to do.
        hint: String,
    },
    /// The device was lost: driver reset, tab in the background, or the GPU process was killed.
    #[error("the GPU device was lost ({reason}). Load the model again.")]
    DeviceLost {
        /// Reason given by the browser or the driver.
        reason: String,
    },

    // ---- running
    // --------------------------------------------------------------------------------------------------
    /// A request that contradicts itself or the model.
    #[error("{parameter}: {reason}")]
    Request {
        /// The parameter's name as the caller wrote it.
        parameter: String,
        /// What is wrong and what is allowed.
        reason: String,
    },
    /// The prompt does not fit into the context.
    #[error(
        "the prompt has {tokens} tokens, but the context holds only {limit}. Shorten it, load the model with a larger maxContext, or set overflow to 'truncate' or 'rolling'."
    )]
    ContextFull {
        /// Number of prompt tokens.
        tokens: usize,
        /// Context length in tokens.
        limit: usize,
    },
    /// A sequence or a batch of token ids is longer than the model accepts.
    #[error("{what} has {tokens} tokens, but the model accepts at most {limit}. {hint}")]
    SequenceTooLong {
        /// The sequence or the batch.
        what: &'static str,
        /// Its number of tokens.
        tokens: usize,
        /// The model's or the load's limit in tokens.
        limit: usize,
        /// What to do.
        hint: &'static str,
    },
    /// The messages of a conversation that cannot be dropped exceed the context.
    #[error(
        "the system and last messages have {tokens} tokens, but the context has room for only {limit} plus the answer. Shorten them, or load the model with a larger maxContext."
    )]
    MessageTooLong {
        /// Tokens of the remaining messages.
        tokens: usize,
        /// Context length minus the tokens reserved for the answer.
        limit: usize,
    },
    /// The logits are not finite: damaged weights, or a faulty driver.
    #[error("the model's logits are not finite after {step}. {hint}")]
    NotFinite {
        /// Where it was detected.
        step: String,
        /// What to do.
        hint: String,
    },
    /// The storage of the browser is full.
    #[error(
        "the browser's storage is full: {reason}. The model runs, but will be downloaded again next time."
    )]
    Quota {
        /// Message of the browser.
        reason: String,
    },
    /// A bug in the engine.
    #[error("internal error: {0}. This is a bug in Jerboa; please report it.")]
    Internal(String),
}

impl Error {
    /// The part of the message that hosts other than a page name otherwise.
    pub fn advice(&self) -> Option<Advice> {
        match self {
            Self::ModelName { .. } => Some(SOURCE_ADVICE),
            Self::Gated { url, .. } if is_on_hub(url) => Some(TOKEN_ADVICE),
            Self::Gated { .. } => Some(SERVER_TOKEN_ADVICE),
            _ => None,
        }
    }

    /// Whether the error implies that a file of the model is wrong or missing.
    pub(crate) fn implicates_file(&self) -> bool {
        self.implicates_content()
            || matches!(
                self,
                Error::MissingTensor { .. }
                    | Error::Shape { .. }
                    | Error::Config { .. }
                    | Error::Tokenizer { .. }
                    | Error::ChatTemplate { .. }
                    | Error::MissingFile { .. }
                    | Error::NotFound { .. }
            )
    }

    /// Whether a device was lost because its memory did not suffice.
    pub(crate) fn is_loss_by_memory(&self) -> bool {
        matches!(self, Self::DeviceLost { reason } if reason.to_lowercase().contains("memory"))
    }

    /// Whether the error implies that a file holds other bytes than it should.
    pub(crate) fn implicates_content(&self) -> bool {
        matches!(
            self,
            Error::Malformed { .. } | Error::UnusableFile { .. } | Error::NotFinite { .. }
        )
    }
}

/// Assigns a code to every variant: a variant without a code does not compile.
macro_rules! codes {
    ($($variant:ident => $code:literal,)*) => {
        impl Error {
            /// All codes, in the order of the variants.
            pub const CODES: &[&str] = &[$($code),*];

            /// The stable name of this error in JavaScript (`JerboaError.code`).
            pub fn code(&self) -> &'static str {
                match self {
                    $(Error::$variant { .. } => $code,)*
                }
            }
        }
    };
}

codes! {
    ModelName => "model_name",
    NotFound => "not_found",
    Gated => "gated",
    Network => "network",
    Unreachable => "network",
    Changed => "changed",
    Unverified => "unverified",
    Unchecked => "unchecked",
    Cache => "cache",
    CacheAccess => "cache",
    Aborted => "aborted",
    MissingFile => "missing_file",
    Malformed => "malformed",
    UnusableFile => "malformed",
    UnsupportedEncoding => "unsupported_encoding",
    MissingTensor => "missing_tensor",
    Shape => "shape",
    Config => "config",
    UnknownArchitecture => "unknown_architecture",
    UnsupportedOption => "unsupported_option",
    Tokenizer => "tokenizer",
    ChatTemplate => "chat_template",
    NoWebGpu => "no_webgpu",
    Kernel => "kernel",
    OutOfMemory => "out_of_memory",
    DeviceLost => "device_lost",
    Request => "request",
    ContextFull => "context_full",
    SequenceTooLong => "context_full",
    MessageTooLong => "context_full",
    NotFinite => "not_finite",
    Quota => "quota",
    Internal => "internal",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_a_part_of_the_message() {
        let gated = |url: &str| Error::Gated {
            url: url.into(),
            status: 401,
        };
        for (error, about) in [
            (gated("https://huggingface.co/a/b/resolve/main/x"), "token"),
            (gated("https://example.org/model/x"), "server_token"),
            (
                Error::ModelName {
                    name: "x".into(),
                    reason: "it has no owner".into(),
                },
                "source",
            ),
        ] {
            let advice = error.advice().expect("advice");
            assert_eq!(advice.about, about);
            assert!(error.to_string().contains(advice.text), "{error}");
        }
        assert_eq!(Error::Internal("x".into()).advice(), None);
    }
}
