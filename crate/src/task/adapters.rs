//! Adapters of a model by name.

use crate::exec::OverlayId;
use crate::util::map::SortedMap;
use crate::{Error, Result};
use std::cell::RefCell;
use std::rc::Rc;

/// The adapters that were loaded next to a model. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Adapters(Rc<RefCell<SortedMap<String, OverlayId>>>);

impl Adapters {
    /// Adds the adapter that `load` loads.
    ///
    /// # Errors
    /// Errors of `load`; `Request` for a name that is empty or taken.
    pub async fn load(
        &self,
        name: &str,
        load: impl Future<Output = Result<OverlayId>>,
    ) -> Result<()> {
        if name.is_empty() || self.0.borrow().contains_key(name) {
            return Err(refuse(format!(
                "the name '{name}' is empty or taken. Choose another one, or unload that adapter."
            )));
        }
        let adapter = load.await?;
        self.0.borrow_mut().insert(name.into(), adapter);
        Ok(())
    }

    /// Removes an adapter from the list.
    ///
    /// # Errors
    /// `Request` for an unknown name.
    pub fn remove(&self, name: &str) -> Result<OverlayId> {
        let removed = self.0.borrow_mut().remove(name);
        removed.ok_or_else(|| unknown(name))
    }

    /// Returns the adapter of this name; none for an empty name.
    ///
    /// # Errors
    /// `Request` for an unknown name.
    pub fn find(&self, name: &str) -> Result<Option<OverlayId>> {
        if name.is_empty() {
            return Ok(None);
        }
        let adapters = self.0.borrow();
        adapters
            .get(name)
            .copied()
            .map(Some)
            .ok_or_else(|| unknown(name))
    }
}

fn unknown(name: &str) -> Error {
    refuse(format!(
        "no adapter '{name}' is loaded. Load it with model.loadAdapter."
    ))
}

fn refuse(reason: String) -> Error {
    Error::Request {
        parameter: "adapter".into(),
        reason,
    }
}
