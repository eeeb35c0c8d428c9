//! URLs of a model's files, derived from its name and options. Does not access the network.

use crate::hub::HubOptions;
use crate::hub::model_ref::{
    DEFAULT_ENDPOINT, ModelRef, check_url, is_revision, percent_encode, without_credentials,
};
use crate::{Error, Result};

/// The URL of a repository's main branch, without a trailing slash; `None` for other revisions.
#[cfg(target_arch = "wasm32")]
pub(in crate::hub) fn main_branch_url(model: &ModelRef, options: &HubOptions) -> Option<String> {
    let address = ModelUrls::for_model(model, options).ok()?;
    (address.revision.as_deref() == Some("main") && address.folder.is_empty())
        .then(|| format!("{}/resolve/main", address.prefix))
}

/// Refuses an endpoint that is neither an absolute URL nor, in a page, a path of its server.
fn check_endpoint(endpoint: &str) -> Result<()> {
    let named = endpoint.contains("://")
        || (cfg!(target_arch = "wasm32") && endpoint.starts_with(['/', '.']));
    let problem = match check_url(endpoint) {
        Err(reason) => reason,
        Ok(()) if !named => "an absolute URL is required, such as https://huggingface.co",
        Ok(()) => return Ok(()),
    };
    let shown = without_credentials(endpoint);
    Err(Error::Request {
        parameter: "endpoint".to_string(),
        reason: format!("'{shown}' is not the URL of a Hub: {problem}"),
    })
}

/// The URLs of a model.
pub(super) struct ModelUrls {
    pub name: String,
    /// Everything before the revision, or the folder's URL.
    pub prefix: String,
    pub revision: Option<String>,
    /// The repository's subfolder with a trailing slash; empty for its root.
    pub folder: String,
    pub api: Option<String>,
}

impl ModelUrls {
    pub fn for_model(model: &ModelRef, options: &HubOptions) -> Result<ModelUrls> {
        match model {
            ModelRef::Repo {
                id,
                revision,
                folder,
            } => {
                let revision = options.revision.clone().or_else(|| revision.clone());
                let revision = revision.unwrap_or_else(|| "main".to_string());
                if !is_revision(&revision) {
                    let reason = format!("'{revision}' is not the name of a branch, tag or commit");
                    return Err(Error::ModelName {
                        name: id.clone(),
                        reason,
                    });
                }
                let endpoint = options.endpoint.as_deref().unwrap_or(DEFAULT_ENDPOINT);
                check_endpoint(endpoint)?;
                let endpoint = endpoint.trim_end_matches('/');
                let prefix = format!("{endpoint}/{id}");
                let api = format!(
                    "{endpoint}/api/models/{id}/revision/{}",
                    percent_encode(&revision, false)
                );
                let (name, folder) = if folder.is_empty() {
                    (format!("{prefix}@{revision}"), String::new())
                } else {
                    let revision = percent_encode(&revision, false);
                    let page = percent_encode(folder, true);
                    (
                        format!("{prefix}/tree/{revision}/{page}"),
                        format!("{folder}/"),
                    )
                };
                Ok(ModelUrls {
                    name,
                    prefix,
                    revision: Some(revision),
                    folder,
                    api: Some(api),
                })
            }
            ModelRef::Folder { url } => Ok(ModelUrls {
                name: url.clone(),
                prefix: url.clone(),
                revision: None,
                folder: String::new(),
                api: None,
            }),
            ModelRef::File {
                location: place, ..
            } => ModelUrls::for_model(place, options),
            ModelRef::Path { path } => {
                let reason =
                    "a local path cannot be downloaded; use 'org/name' or a URL".to_string();
                Err(Error::ModelName {
                    name: path.clone(),
                    reason,
                })
            }
        }
    }

    pub fn base_url(&self, revision: Option<&str>) -> String {
        match revision {
            Some(revision) => format!(
                "{}/resolve/{}/{}",
                self.prefix,
                percent_encode(revision, false),
                percent_encode(&self.folder, true)
            ),
            None => format!("{}/", self.prefix),
        }
    }
}
