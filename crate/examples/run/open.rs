//! Options shared by all commands: which model, and how it runs.

use crate::options::{CliArgs, Result, flag, format_error, list, parsed, request_flags, value};
use clap::{Arg, ArgGroup, Command, value_parser};
use jerboa::exec::{ModelFiles, RunOptions, Session};
use jerboa::gpu::{Backend, DeviceOptions, Gpu};
use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use jerboa::task::{ChatModel, LOAD_OPTIONS, LoadRequest, MTP_DRAFT, Task, TaskModel};
use serde_json::Value;

/// Options of a load that are flags of the same names.
const MIRRORED: &[&str] = &[
    "weights",
    "embedding_weights",
    "activations",
    "kv",
    "kv_growth",
    "max_kv_memory",
    "experts",
    "expert_bytes",
    "tune",
    "endpoint",
];

/// Adds a required model and all run options to a command.
pub fn with_required_model(command: Command) -> Command {
    with_optional_model(command).group(
        ArgGroup::new("which")
            .args(["MODEL", "model"])
            .required(true),
    )
}

/// Adds an optional model and all run options to a command.
pub fn with_optional_model(command: Command) -> Command {
    let which = [
        Arg::new("MODEL").help("Folder, FILE.gguf, URL or ORG/NAME"),
        value("model", "MODEL", "The model, given as an option"),
    ];
    let how = [
        parsed(
            "context",
            "N",
            value_parser!(usize),
            "Maximum context: tokens of prompt and answer together",
        ),
        flag(
            "no-prefetch-experts",
            "Do not prefetch the next layer's experts",
        ),
        parsed(
            "page-embeddings",
            "WHERE",
            ["auto", "gpu", "file"],
            "Where embedding tables are stored",
        )
        .default_value("auto"),
        parsed(
            "chunk",
            "N",
            value_parser!(usize),
            "Maximum tokens of a prefill step",
        ),
        parsed(
            "memory",
            "BYTES",
            value_parser!(u64),
            "Maximum GPU memory for the model",
        ),
        parsed(
            "max-buffer",
            "BYTES",
            value_parser!(u64),
            "Maximum GPU buffer size",
        ),
        list(
            "features",
            "NAMES",
            ["no-f16", "no-subgroups", "no-matrix"],
            "GPU features to disable",
        ),
    ];
    command
        .args(which)
        .next_help_heading("Runtime options")
        .args(request_flags(LOAD_OPTIONS, MIRRORED))
        .args(how)
        .next_help_heading(None)
}

/// Adds text options to a command: one text, or a file of them.
pub fn with_texts(command: Command) -> Command {
    command
        .arg(value("text", "TEXT", "Input text"))
        .arg(value("file", "FILE", "File with one text per line"))
        .group(ArgGroup::new("texts").args(["text", "file"]).required(true))
}

impl CliArgs {
    /// The model's name, from either argument.
    pub fn model_name(&self) -> String {
        self.text("MODEL")
            .or_else(|| self.text("model"))
            .unwrap_or_default()
    }

    /// The run options of the command line.
    pub fn run_options(&self) -> Result<RunOptions> {
        let request = Value::from(self.request(LOAD_OPTIONS));
        let request: LoadRequest = serde_json::from_value(request).map_err(|e| e.to_string())?;
        let mut run = request.run_options().map_err(format_error)?;
        run.max_context = self.get("context");
        run.memory = self.get("memory");
        run.prefetch_experts = !self.is_set("no-prefetch-experts");
        run.page_embeddings = match self.require::<String>("page-embeddings")?.as_str() {
            "auto" => None,
            place => Some(place == "file"),
        };
        run.prefill_chunk = self.get("chunk").unwrap_or(run.prefill_chunk);
        Ok(run)
    }

    /// The options of this machine's GPU.
    pub fn device(&self) -> DeviceOptions {
        let off = self.values::<String>("features");
        DeviceOptions {
            f16: !off.iter().any(|name| name == "no-f16"),
            subgroups: !off.iter().any(|name| name == "no-subgroups"),
            matrix: !off.iter().any(|name| name == "no-matrix"),
            max_buffer_size: self.get("max-buffer"),
            ..DeviceOptions::default()
        }
    }

    /// Opens this machine's GPU.
    pub async fn gpu(&self) -> Result<Gpu> {
        Gpu::open(&self.device()).await.map_err(format_error)
    }

    /// Opens the files of the named model.
    pub async fn source(&self) -> Result<Source> {
        self.source_of(&self.model_name(), Progress::silent()).await
    }

    /// Opens the files of a model.
    pub async fn source_of(&self, name: &str, progress: Progress) -> Result<Source> {
        let path = std::path::Path::new(name);
        if path.is_file()
            && !path
                .extension()
                .is_some_and(|end| end.eq_ignore_ascii_case("gguf"))
        {
            return Err(format!(
                "{name} is not a .gguf file. Use the folder with config.json and the weights."
            ));
        }
        // A local path may omit the leading './'.
        let local = path.exists() && !name.starts_with(['/', '.']);
        let name = if local {
            format!("./{name}")
        } else {
            name.to_string()
        };
        let model = ModelRef::parse(&name).map_err(format_error)?;
        let options = HubOptions {
            endpoint: self.text("endpoint"),
            ..HubOptions::default()
        };
        Source::open(&model, &options, AbortFlag::new(), progress)
            .await
            .map_err(format_error)
    }

    /// Loads the decoder only.
    pub async fn model(&self) -> Result<Session> {
        self.session(self.run_options()?).await
    }

    /// Loads the decoder only, with the given options.
    pub async fn session(&self, options: RunOptions) -> Result<Session> {
        let source = self.source().await?;
        let files = ModelFiles::open(&source, None)
            .await
            .map_err(format_error)?;
        Session::load_files(self.gpu().await?, &source, files, options)
            .await
            .map_err(format_error)
    }

    /// Loads the model with tokenizer, chat template and draft model.
    pub async fn loaded(&self) -> Result<ChatModel> {
        let source = self.source().await?;
        let (gpu, mut options) = (self.gpu().await?, self.run_options()?);
        let draft: Option<String> = self.get("draft");
        options.stores_hidden = draft.as_deref() == Some(MTP_DRAFT);
        let loaded = ChatModel::load(gpu, &source, &self.model_name(), options).await;
        let mut loaded = loaded.map_err(format_error)?;
        if let Some(draft) = draft {
            self.load_draft(&mut loaded, &draft).await?;
        }
        Ok(loaded)
    }

    /// Loads a draft model.
    pub async fn load_draft(&self, target: &mut ChatModel, name: &str) -> Result<()> {
        let source = match name {
            MTP_DRAFT => self.source().await?,
            name => self.source_of(name, Progress::silent()).await?,
        };
        let loaded = target.load_draft(&source, name, self.run_options()?).await;
        loaded.map_err(format_error)
    }

    /// Loads the model for a task.
    pub async fn any_model(&self, task: Task) -> Result<TaskModel> {
        let source = self.source().await?;
        let gpu = self.gpu().await?;
        let options = self.run_options()?;

        TaskModel::load(gpu, &source, &self.model_name(), Some(task), options)
            .await
            .map_err(format_error)
    }

    /// The text of --text, or the lines of --file.
    pub fn texts(&self) -> Result<Vec<String>> {
        match self.text("file") {
            Some(file) => Ok(read(&file)?.lines().map(str::to_string).collect()),
            None => Ok(vec![self.require("text")?]),
        }
    }

    /// The text of --text, or all of --file.
    pub fn text_or_file(&self) -> Result<String> {
        match self.text("file") {
            Some(file) => read(&file),
            None => self.require("text"),
        }
    }

    /// The messages of --chat: a JSON file with a list, or with an object whose `messages` is one.
    pub fn messages(&self) -> Result<Vec<Value>> {
        let file: String = self.require("chat")?;
        let value: Value =
            serde_json::from_str(&read(&file)?).map_err(|e| format!("{file}: {e}"))?;
        let list = value.get("messages").unwrap_or(&value).as_array().cloned();
        list.ok_or_else(|| {
            format!("{file}: expected a JSON list of messages, or an object with 'messages'")
        })
    }
}

fn read(file: &str) -> Result<String> {
    std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))
}
