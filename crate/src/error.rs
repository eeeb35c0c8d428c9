//! The one error type of the engine: every variant has a stable code for JavaScript and a message that says what to do.

use thiserror::Error;

/// The result of every fallible function of the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn near(names: &str) -> String {
    if names.is_empty() { String::new() } else { format!("; the nearest that runs is {names}") }
}

/// What can go wrong, by the part of the engine that notices it.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum Error {
    // ---- hub: names, network, cache -------------------------------------------------------------------------------
    /// A model name that is neither `org/name`, a URL nor a list of files.
    #[error(
        "'{name}' is not a model name: {reason}. Use 'org/name', a URL of a folder, or files that the user picked."
    )]
    ModelName {
        /// What the caller gave.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The server has no such repository, revision or file.
    #[error(
        "{url} was not found ({answer}). Check the repository's name, its revision and the file; a private repository also answers 404 without a token."
    )]
    NotFound {
        /// The address that was asked for.
        url: String,
        /// What the server answered instead: a status, or a page.
        answer: String,
    },
    /// The server wants a token, or refuses the one it got.
    #[error(
        "{url} is gated (HTTP {status}). Accept the model's terms on its page, then pass a token that can read it: loadModel(name, {{ token }})."
    )]
    Gated {
        /// The address that was asked for.
        url: String,
        /// 401 or 403.
        status: u16,
    },
    /// The network failed and retrying did not help.
    #[error("downloading {url} failed: {reason}. What arrived is kept, and loading again resumes it.")]
    Network {
        /// The address that was asked for.
        url: String,
        /// What the last attempt said.
        reason: String,
    },
    /// A server that never answered.
    #[error("{url} cannot be reached: {reason}.")]
    Unreachable {
        /// The address that was asked for.
        url: String,
        /// What the last attempt said.
        reason: String,
    },
    /// A file that became another one while it was being read.
    #[error("{file} changed on the server while it was being loaded. Load the model again.")]
    Changed {
        /// The file with its place.
        file: String,
    },
    /// A warning: the cache was used although nobody could say whether it is still right.
    #[error("{place} could not be asked whether it changed, so the cached copy is used. {reason}")]
    Unverified {
        /// The model's place.
        place: String,
        /// What asking said.
        reason: String,
    },
    /// A warning: there is no cache, or it cannot be written.
    #[error("the cache cannot be used: {reason}. The model runs, but will be downloaded again next time.")]
    Cache {
        /// The browser's or system's message.
        reason: String,
    },
    /// The caller aborted.
    #[error("{what} was aborted")]
    Aborted {
        /// What was under way.
        what: String,
    },
    /// A file that is needed is not among those of the model.
    #[error("{file} is missing from {place}. {hint}")]
    MissingFile {
        /// The file's name.
        file: String,
        /// The repository or folder.
        place: String,
        /// What to do.
        hint: String,
    },

    // ---- format: containers and encodings -------------------------------------------------------------------------
    /// A file that breaks the rules of its container.
    #[error(
        "{file} is not a valid {format} file: {reason}. Download it again; if it stays so, the file on the server is damaged."
    )]
    Malformed {
        /// The file.
        file: String,
        /// safetensors, gguf, …
        format: &'static str,
        /// What rule it breaks, with numbers.
        reason: String,
    },
    /// An element type or weight encoding that the engine does not read.
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
        "the checkpoint has no tensor {tensor}, which {architecture} needs. It may be incomplete or of another architecture."
    )]
    MissingTensor {
        /// The tensor's name.
        tensor: String,
        /// The architecture.
        architecture: String,
    },
    /// A tensor whose shape does not follow from config.json.
    #[error(
        "tensor {tensor} has shape {found:?}, but config.json asks for {expected:?}. The two are not from the same checkpoint."
    )]
    Shape {
        /// The tensor's name.
        tensor: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape that the configuration implies.
        expected: Vec<usize>,
    },

    // ---- config and architecture ----------------------------------------------------------------------------------
    /// A JSON file that does not parse or lacks a field.
    #[error("{file}: {reason}")]
    Config {
        /// The file.
        file: String,
        /// What is wrong, with the field's name.
        reason: String,
    },
    /// An architecture that the engine does not know.
    #[error(
        "the architecture '{name}' is not supported{}. All that run: {}#what-runs", near(.nearest), env!("CARGO_PKG_REPOSITORY")
    )]
    UnknownArchitecture {
        /// `architectures[0]` or `model_type` of config.json.
        name: String,
        /// Those like it that are, by name; empty where none is.
        nearest: String,
    },
    /// A known architecture with an option that the engine does not run.
    #[error("{architecture}: {option} is not supported. {hint}")]
    UnsupportedOption {
        /// The architecture.
        architecture: String,
        /// The option with its value.
        option: String,
        /// What to use instead.
        hint: String,
    },

    // ---- text -----------------------------------------------------------------------------------------------------
    /// tokenizer.json cannot be read or used.
    #[error("the tokenizer cannot be used: {reason}")]
    Tokenizer {
        /// What is wrong.
        reason: String,
    },
    /// The chat template failed, or raised an exception of its own.
    #[error("the chat template failed: {reason}")]
    ChatTemplate {
        /// The template's message, with its line.
        reason: String,
    },

    // ---- device ---------------------------------------------------------------------------------------------------
    /// There is no WebGPU, or no adapter.
    #[error("WebGPU is not available: {reason}. {hint}")]
    NoWebGpu {
        /// What was tried and what it said.
        reason: String,
        /// What the user can do, for this browser.
        hint: String,
    },
    /// A shader or pipeline that the device refuses.
    #[error("the device refused the kernel {kernel}: {reason}")]
    Kernel {
        /// The kernel with its variant.
        kernel: String,
        /// The device's message.
        reason: String,
    },
    /// The device has too little memory for what was asked.
    #[error("{what} needs {needed} bytes, more than the device gives ({limit}). {hint}")]
    OutOfMemory {
        /// What was to be stored.
        what: String,
        /// Bytes asked for.
        needed: u64,
        /// Bytes to be had, or the limit that was hit.
        limit: u64,
        /// What to do.
        hint: String,
    },
    /// The device is gone: driver reset, tab in the background, GPU process killed.
    #[error("the GPU device was lost ({reason}). Load the model again.")]
    DeviceLost {
        /// The browser's or driver's reason.
        reason: String,
    },

    // ---- running --------------------------------------------------------------------------------------------------
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
        "the prompt has {tokens} tokens, the context holds {limit}. Shorten it, load the model with a larger maxContext, or set overflow to 'truncate' or 'rolling'."
    )]
    ContextFull {
        /// Tokens asked for.
        tokens: usize,
        /// Tokens that fit.
        limit: usize,
    },
    /// What of a conversation cannot be dropped does not fit into the context.
    #[error(
        "the last message and the system's have {tokens} tokens, the context has room for {limit} beside the answer. Shorten them, or load the model with a larger maxContext."
    )]
    MessageTooLong {
        /// Tokens of what is left.
        tokens: usize,
        /// Tokens that fit.
        limit: usize,
    },
    /// Logits that are not numbers: damaged weights or a faulty driver.
    #[error("the model's logits are not finite after {step}. {hint}")]
    NotFinite {
        /// Where it was noticed.
        step: String,
        /// What to do.
        hint: String,
    },
    /// The storage of the browser is full.
    #[error("the browser's storage is full: {reason}. The model runs, but will be downloaded again next time.")]
    Quota {
        /// The browser's message.
        reason: String,
    },
    /// A fault of the engine itself.
    #[error("internal error: {0}. This is a fault of jerboa; please report it.")]
    Internal(String),
}

/// Names every variant once: a variant without a code does not compile.
macro_rules! codes {
    ($($variant:ident => $code:literal,)*) => {
        impl Error {
    /// Whether it says that a file of the model is wrong or is not there.
    pub(crate) fn blames_a_file(&self) -> bool {
        matches!(
            self,
            Error::Malformed { .. }
                | Error::MissingTensor { .. }
                | Error::Shape { .. }
                | Error::Config { .. }
                | Error::Tokenizer { .. }
                | Error::ChatTemplate { .. }
                | Error::MissingFile { .. }
                | Error::NotFound { .. }
        )
    }

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
    Cache => "cache",
    Aborted => "aborted",
    MissingFile => "missing_file",
    Malformed => "malformed",
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
    MessageTooLong => "context_full",
    NotFinite => "not_finite",
    Quota => "quota",
    Internal => "internal",
}
