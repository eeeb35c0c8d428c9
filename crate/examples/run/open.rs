//! The options that all commands share: which model, and how it runs here. Knows no command.

use crate::options::{Given, Result, flag, list, parsed, told, value};
use clap::{Arg, ArgGroup, Command, value_parser};
use jerboa::exec::{Files, Precision, Resident, RunOptions, Session, Tune};
use jerboa::gpu::{Backend, DeviceOptions, Gpu};
use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use jerboa::kernels::attention::Kv;
use jerboa::task::{AnyModel, Loaded, Task};
use serde_json::Value;

const PRECISIONS: [&str; 5] = ["auto", "f32", "f16", "q8", "q4"];

/// A command that opens a model, with all options of how it runs.
pub fn on_model(command: Command) -> Command {
    with_model(command).group(ArgGroup::new("which").args(["MODEL", "model"]).required(true))
}

/// The same where the model may be left out.
pub fn with_model(command: Command) -> Command {
    let which = [
        Arg::new("MODEL").help("A folder, FILE.gguf, an address or ORG/NAME"),
        value("model", "MODEL", "The same, as an option"),
    ];
    let how = [
        parsed("weights", "TYPE", PRECISIONS, "What weights that the checkpoint does not quantize are kept as")
            .default_value("auto"),
        parsed("embedding-weights", "TYPE", PRECISIONS, "The same for embeddings and lm_head").default_value("auto"),
        parsed("kv", "TYPE", ["auto", "f32", "f16", "packed", "int8"], "What the KV cache is kept as")
            .default_value("auto"),
        parsed("context", "N", value_parser!(usize), "The most tokens that prompt and answer hold together"),
        parsed("kv-page", "N", value_parser!(usize), "Positions by which the KV cache grows; 0 for all at once"),
        parsed("experts", "N", value_parser!(usize), "Experts of each layer that stay on the device"),
        parsed("expert-bytes", "BYTES", value_parser!(u64), "The same as bytes of all layers"),
        flag("no-look-ahead", "Do not fetch the next layer's likely experts"),
        parsed("table-rows", "WHERE", ["auto", "gpu", "file"], "Where tables that are only looked up lie")
            .default_value("auto"),
        parsed("chunk", "N", value_parser!(usize), "Rows of a prefill step"),
        parsed("memory", "BYTES", value_parser!(u64), "GPU memory that the model may take"),
        parsed("max-buffer", "BYTES", value_parser!(u64), "The largest buffer of the device"),
        list("features", "NAMES", ["no-f16", "no-subgroups", "no-matrix"], "Features of the device to do without"),
        parsed("tune", "WHEN", ["auto", "off", "again"], "Whether kernels are measured on this device")
            .default_value("auto"),
        value("endpoint", "URL", "The server that ORG/NAME is looked up on"),
    ];
    command.args(which).next_help_heading("How it runs").args(how).next_help_heading(None)
}

/// The options of texts: one, or a file of them.
pub fn with_texts(command: Command) -> Command {
    command
        .arg(value("text", "TEXT", "One text"))
        .arg(value("file", "FILE", "A file with one text a line"))
        .group(ArgGroup::new("texts").args(["text", "file"]).required(true))
}

impl Given {
    /// The model as it was named.
    pub fn model_name(&self) -> String {
        self.text("MODEL").or_else(|| self.text("model")).unwrap_or_default()
    }

    /// The engine's options.
    pub fn run_options(&self) -> Result<RunOptions> {
        let mut run =
            RunOptions { max_context: self.get("context"), memory: self.get("memory"), ..RunOptions::default() };
        run.overrides.precision = Precision::from_name("--weights", &self.need::<String>("weights")?).map_err(told)?;
        let tables = self.need::<String>("embedding-weights")?;
        run.overrides.tables = Precision::from_name("--embedding-weights", &tables).map_err(told)?;
        run.overrides.kv = Kv::from_name(&self.need::<String>("kv")?);
        run.tune = Tune::from_name("--tune", &self.need::<String>("tune")?).map_err(told)?;
        run.page = self.get("kv-page").unwrap_or(run.page);
        run.experts = self.get("experts").map(Resident::Count).or(self.get("expert-bytes").map(Resident::Bytes));
        run.look_ahead = !self.has("no-look-ahead");
        run.table_rows = match self.need::<String>("table-rows")?.as_str() {
            "auto" => None,
            place => Some(place == "file"),
        };
        run.chunk = self.get("chunk").unwrap_or(run.chunk);
        Ok(run)
    }

    /// This machine's GPU.
    pub async fn gpu(&self) -> Result<Gpu> {
        let off = self.all::<String>("features");
        let options = DeviceOptions {
            f16: !off.iter().any(|name| name == "no-f16"),
            subgroups: !off.iter().any(|name| name == "no-subgroups"),
            matrix: !off.iter().any(|name| name == "no-matrix"),
            max_buffer_size: self.get("max-buffer"),
            ..DeviceOptions::default()
        };
        Gpu::open(&options).await.map_err(told)
    }

    /// The files of the model that was named.
    pub async fn source(&self) -> Result<Source> {
        self.source_of(&self.model_name(), Progress::none()).await
    }

    /// The files of a model.
    pub async fn source_of(&self, name: &str, progress: Progress) -> Result<Source> {
        let path = std::path::Path::new(name);
        if path.is_file() && !path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf")) {
            return Err(format!("{name} is a file and no .gguf: name the folder that has config.json and the weights"));
        }
        // A folder or file on disk may be written without a leading './'.
        let local = path.exists() && !name.starts_with(['/', '.']);
        let name = if local { format!("./{name}") } else { name.to_string() };
        let model = ModelRef::parse(&name).map_err(told)?;
        let options = HubOptions { endpoint: self.text("endpoint"), ..HubOptions::default() };
        Source::open(&model, &options, AbortFlag::new(), progress).await.map_err(told)
    }

    /// The decoder alone.
    pub async fn model(&self) -> Result<Session> {
        self.session(self.run_options()?).await
    }

    /// The same with options of its own.
    pub async fn session(&self, options: RunOptions) -> Result<Session> {
        let source = self.source().await?;
        let files = Files::open(&source, None).await.map_err(told)?;
        Session::load_files(self.gpu().await?, &source, files, options).await.map_err(told)
    }

    /// The model with its text side.
    pub async fn loaded(&self) -> Result<Loaded> {
        let source = self.source().await?;
        Loaded::load(self.gpu().await?, &source, &self.model_name(), self.run_options()?).await.map_err(told)
    }

    /// The model for a task.
    pub async fn any_model(&self, task: Task) -> Result<AnyModel> {
        let source = self.source().await?;
        let (gpu, options) = (self.gpu().await?, self.run_options()?);
        AnyModel::load(gpu, &source, &self.model_name(), Some(task), options).await.map_err(told)
    }

    /// The text of --text, or the lines of --file.
    pub fn texts(&self) -> Result<Vec<String>> {
        match self.text("file") {
            Some(file) => Ok(read(&file)?.lines().map(str::to_string).collect()),
            None => Ok(vec![self.need("text")?]),
        }
    }

    /// The text of --text, or all of --file.
    pub fn whole_text(&self) -> Result<String> {
        match self.text("file") {
            Some(file) => read(&file),
            None => self.need("text"),
        }
    }

    /// The messages of --chat: a JSON file with a list, or with an object that has one as `messages`.
    pub fn messages(&self) -> Result<Vec<Value>> {
        let file: String = self.need("chat")?;
        let value: Value = serde_json::from_str(&read(&file)?).map_err(|e| format!("{file}: {e}"))?;
        let list = value.get("messages").unwrap_or(&value).as_array().cloned();
        list.ok_or_else(|| format!("{file} is not a list of messages"))
    }
}

fn read(file: &str) -> Result<String> {
    std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))
}
