//! Reads what tells a model's task before its weights are loaded.

use super::kind::{Task, TaskHints, refuse};
use super::sentence_transformers::SentenceTransformersConfig;
use super::serves_task::{LoadFuture, TaskFiles};
use crate::Result;
use crate::arch;
use crate::exec::ModelFiles;
use crate::format::gguf::Gguf;
use crate::hub::{Phase, Source};

/// Returns the task that a model's files imply.
///
/// # Errors
/// Errors of the files or the source.
pub async fn task_of(source: &Source, name: &str) -> Result<Task> {
    let (_, task) = open_task_files(source, name, None, false).await?;
    Ok(task)
}

/// Reads what tells a model's task. Returns `task`, or else the task that the files imply.
///
/// # Errors
/// Errors of the files or the source; `Request` for a task that the model cannot serve.
pub(super) async fn open_task_files(
    source: &Source,
    name: &str,
    task: Option<Task>,
    has_codec: bool,
) -> Result<(TaskFiles, Task)> {
    source.progress().phase(Phase::Config);
    // A GGUF file that the caller names holds its own configuration.
    let config = if source.gguf().is_some() {
        None
    } else {
        ModelFiles::config(source).await?
    };
    let files = match config {
        None => TaskFiles::Container(Box::new(open_container(source).await?)),
        Some(config) => TaskFiles::Folder {
            config: Box::new(config),
            sentence: match task {
                Some(Task::Generate) => None,
                _ => SentenceTransformersConfig::read(source).await?,
            },
        },
    };
    let hints = match &files {
        TaskFiles::Folder { config, sentence } => TaskHints {
            pools: sentence.is_some(),
            has_codec,
            name,
            ..TaskHints::of_config(config)
        },
        TaskFiles::Container(files) => TaskHints {
            gguf_pooling: files.gguf.as_ref().and_then(Gguf::pooling_type),
            name,
            ..TaskHints::of_config(&files.config)
        },
    };
    let implied = Task::implied_by(&hints);
    let task = task.unwrap_or(implied);
    match &files {
        TaskFiles::Folder { config, .. } => task.check(config, name)?,
        TaskFiles::Container(files) => {
            task.check_container(files.config.container())?;
            if task == Task::Generate && arch::is_bidirectional(&files.config) {
                let reason = "'generate' is not possible: the attention of this model is bidirectional. Use 'embed'.";
                return Err(refuse(reason.into()));
            }
        }
    }
    Ok((files, task))
}

#[inline(never)]
fn open_container(source: &Source) -> LoadFuture<'_, ModelFiles> {
    Box::pin(ModelFiles::open(source, None))
}
