//! Conversations on one model: sessions, forks, saved states, and adapters of any model.

use super::Engine;
use crate::Error;
use crate::hub::AbortFlag;
use crate::task::{ChatModel, ChatPool, Task};
use crate::web::JsResult;
use crate::web::arguments::{read_part, write_part};
use crate::web::options::{open_source, progress_callback};
use crate::web::values::{property, to_js};
use js_sys::{Function, Uint32Array};
use std::cell::RefCell;
use std::rc::Rc;
use wasm_bindgen::prelude::*;

impl Engine {
    /// Wraps another conversation on the same model.
    fn of_session(&self, made: ChatModel, adapter: &str) -> Engine {
        Engine {
            text: self.text.clone(),
            end_ids: self.end_ids.clone(),
            vision: self.vision.clone(),
            info: self.info.clone(),
            source: self.source.clone(),
            files: self.files.clone(),
            persisted: self.persisted.clone(),
            model_slot: Rc::default(),
            chats: Some(ChatPool::with_adapter(made, 1, adapter)),
            audio_input: RefCell::default(),
        }
    }
}

#[wasm_bindgen]
impl Engine {
    /// Creates an empty conversation on the same model, with an adapter if named. It runs
    /// independently of this one, and is created while requests run.
    #[wasm_bindgen(js_name = createSession)]
    pub async fn create_session(&self, adapter: Option<String>) -> JsResult<Engine> {
        let adapter = adapter.unwrap_or_default();
        let create = async { self.chats()?.create_session(&adapter).await };
        create
            .await
            .map(|made| self.of_session(made, &adapter))
            .map_err(|e| to_js(&e))
    }

    /// Creates a conversation on the same model that continues from this one's state.
    pub async fn fork(&self) -> JsResult<Engine> {
        let fork = async {
            let mut lease = self.lease_chat(None, &AbortFlag::new()).await?;
            let made = lease.chat()?.fork()?;
            made.session.ready().await?;
            Ok(self.of_session(made, self.chats()?.adapter()))
        };
        fork.await.map_err(|e: Error| to_js(&e))
    }

    /// Saves the conversation's tokens and states: `write(bytes)` is called with each part and may
    /// return a promise. Returns the number of bytes.
    #[wasm_bindgen(js_name = saveState)]
    pub async fn save_state(&self, write: Function) -> JsResult<f64> {
        let save = async {
            let mut lease = self.lease_chat(None, &AbortFlag::new()).await?;
            let mut write = |part: Vec<u8>| write_part(&write, &part);
            lease.chat()?.save(&mut write).await
        };
        save.await
            .map(|bytes| bytes as f64)
            .map_err(|e| self.model_error(&e))
    }

    /// Restores a saved conversation of `size` bytes; `read(offset, length)` returns a promise of a
    /// `Uint8Array`. Returns its tokens.
    #[wasm_bindgen(js_name = restoreState)]
    pub async fn restore_state(&self, size: f64, read: Function) -> JsResult<Uint32Array> {
        let restore = async {
            let mut lease = self.lease_chat(None, &AbortFlag::new()).await?;
            let mut read = |at, length| read_part(&read, at, length);
            let chat = lease.chat()?;
            chat.restore(size as u64, &mut read).await?;
            Ok(Uint32Array::from(chat.session.tokens()))
        };
        restore.await.map_err(|e: Error| self.model_error(&e))
    }

    /// Loads a LoRA adapter under a name; `options` as for a model, `model` names its files.
    #[wasm_bindgen(js_name = loadAdapter)]
    pub async fn load_adapter(
        &self,
        name: String,
        options: JsValue,
        on_progress: Function,
    ) -> JsResult<()> {
        let load = async {
            let embeds = self.require_task(Task::Embed).is_ok();
            if !embeds {
                self.chats()?;
            }
            let source = open_source(&options, progress_callback(on_progress)).await?;
            let merge = property(&options, "merge").is_truthy();
            if embeds {
                let taken = self.acquire_model(Task::Embed)?;
                return taken.embedder()?.load_adapter(&name, &source, merge).await;
            }
            self.chats()?.load_adapter(&name, &source, merge).await
        };
        load.await.map_err(|e| to_js(&e))
    }

    /// Frees an adapter.
    #[wasm_bindgen(js_name = unloadAdapter)]
    pub fn unload_adapter(&self, name: &str) -> JsResult<()> {
        let unload = match self.require_task(Task::Embed) {
            Ok(()) => self
                .acquire_model(Task::Embed)
                .and_then(|taken| taken.embedder()?.unload_adapter(name)),
            Err(_) => self.chats().and_then(|chats| chats.unload_adapter(name)),
        };
        unload.map_err(|e| to_js(&e))
    }
}
