//! Adapters of a loaded decoder. Several may be loaded; each session uses one or none.

use super::{Model, OverlaySteps};
use crate::exec::adapter::{AdapterBase, LoadedAdapter};
use crate::exec::decoder_steps::DecoderSteps;
use crate::exec::program_key::OverlayId;
use crate::gpu::Backend;
use crate::hub::Source;
use crate::ir::StoreHidden;
use crate::{Result, arch};
use std::rc::Rc;

impl Model {
    /// Loads an adapter: its weights, and the kernels of the steps that use it. Pass the result to
    /// [`Session::with_adapter`](crate::exec::Session::with_adapter). With `merge`, and for DoRA, the
    /// adapter has copies of the matrices that it updates: no further dispatches, but more memory.
    ///
    /// # Errors
    /// `UnsupportedOption` for other kinds of adapters, for matrices that the model does not have,
    /// and for a model with act-order or paged weights; errors of the source or the device.
    pub async fn load_adapter(&self, source: &Source, merge: bool) -> Result<OverlayId> {
        let base = AdapterBase {
            gpu: &self.gpu,
            config: &self.config,
            options: &self.options,
            runner: &self.runner,
            plain: &|| {
                let graph = arch::graph(&self.config)?;
                match self.options.stores_hidden {
                    true => graph.with_stored_hidden(StoreHidden::ByPosition),
                    false => Ok(graph),
                }
            },
            unused_module: None,
        };
        if self.is_paged() {
            return Err(base.refuse_adapter("an adapter of a model with paged weights"));
        }
        let LoadedAdapter {
            overlay,
            planned,
            bytes,
        } = base.load(source, merge).await?;
        self.update_memory_use(|all| all.weights += bytes);
        self.overlays.borrow_mut().push(Some(Rc::new(OverlaySteps {
            steps: DecoderSteps::new(&planned, self.chunk(), false),
            planned: Rc::new(planned),
        })));
        for key in [&*self.first_programs(), self.decode_programs].concat() {
            self.prepare(key.with_overlay(Some(overlay))).await?;
        }
        self.gpu.check().await?;
        Ok(overlay)
    }

    /// Frees an adapter once no session uses it. Sessions with it must not run again.
    pub fn unload_adapter(&self, adapter: OverlayId) {
        let freed = self
            .overlays
            .borrow_mut()
            .get_mut(adapter.0)
            .and_then(Option::take);
        if freed.is_some() {
            let bytes = self.runner.remove_overlay(adapter);
            self.update_memory_use(|all| all.weights -= bytes);
        }
    }
}
