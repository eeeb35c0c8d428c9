//! How a model that sees is shown pictures: its image processor, its tower, loaded when the first picture comes, and the text
//! that stands for a picture in a conversation. It knows tiles and numbers of pictures, no files of pictures.

use crate::arch::tower;
use crate::exec::{Album, Eye, Files, RunOptions, content, narrowed, processors};
use crate::format::gguf::clip::UNSEEN;
use crate::gpu::{Backend, Gpu};
use crate::hub::Source;
use crate::text::{Prompt, Tokenizer};
use crate::util::clock::now_ms;
use crate::util::map::SortedMap;
use crate::vision::{Films, Intake, Layout, Marks, Picture, Processor};
use crate::{Error, Result};
use futures_util::lock::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The most tokens that a picture becomes unless more are asked for: larger pictures are made smaller, where the family
/// leaves the size open.
const USUAL_TOKENS: usize = 1024;
/// The same of a video.
const FILM_TOKENS: usize = 4096;

/// A picture that a conversation may name.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Seen {
    /// Its number: that of its first token.
    pub picture: u32,
    /// Its tokens.
    pub tokens: usize,
    /// Tokens down and across of each of its tiles.
    pub grids: Vec<(usize, usize)>,
    /// Columns and rows of each tile in pixels, after resizing.
    pub tiles: Vec<(usize, usize)>,
    /// Milliseconds of encoding; 0 where it was encoded before.
    pub ms: f64,
}

/// What the conversations on a model share to see.
pub struct Sight {
    gpu: Rc<Gpu>,
    /// How many times the language model's columns a row has.
    features: usize,
    source: Rc<Source>,
    gguf: Option<String>,
    options: RunOptions,
    processor: Processor,
    films: Option<Films>,
    marks: Marks,
    /// The pictures that are encoded.
    pub album: Rc<RefCell<Album>>,
    /// Sizes of pictures by their numbers; of videos also when their frames show, and the end.
    layouts: RefCell<SortedMap<u32, (Layout, Vec<f64>)>>,
    eye: Mutex<Option<Eye>>,
    encodes: Cell<usize>,
    /// Milliseconds of encoding that no answer has told yet.
    untold_ms: Cell<f64>,
}

impl Sight {
    /// How a model of a configuration sees; None where it does not. Pictures take half the `room` of a prompt at most.
    ///
    /// # Errors
    /// A processor that is not built or whose settings are missing; what the source reports.
    pub async fn open(
        gpu: &Rc<Gpu>,
        config: &Value,
        room: usize,
        source: Rc<Source>,
        gguf: Option<&str>,
        options: RunOptions,
    ) -> Result<Option<Self>> {
        let tower = match tower(config) {
            Err(_) if config.get(UNSEEN).is_none() => return Ok(None),
            found => found?,
        };
        let (mut processor, mut films) = processors(&source, config, &tower).await?;
        let side = tower.patch * tower.merge;
        films.iter_mut().for_each(|films| films.limit(FILM_TOKENS.min(room / 2)));
        processor.limit(USUAL_TOKENS.min(room / 2).max(1) * side * side);
        let names = match source.read_optional("tokenizer_config.json").await? {
            Some(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
            None => json!({}),
        };
        let marks = Marks::of(&processor, &names);
        Ok(Some(Self {
            gpu: gpu.clone(),
            features: tower.features,
            source,
            gguf: gguf.map(String::from),
            options,
            processor,
            films,
            marks,
            album: Rc::default(),
            layouts: RefCell::default(),
            eye: Mutex::new(None),
            encodes: Cell::new(0),
            untold_ms: Cell::new(0.0),
        }))
    }

    /// Takes the rows of a picture of this size.
    ///
    /// # Errors
    /// `Request` for sizes that the processor refuses.
    pub fn intake(&self, width: usize, height: usize) -> Result<Intake> {
        Ok(Intake::new(&self.processor, self.processor.layout(width, height)?))
    }

    /// How videos are taken.
    ///
    /// # Errors
    /// `UnsupportedOption` for families that take none here.
    pub fn films(&self) -> Result<&Films> {
        self.films.as_ref().ok_or_else(|| Error::UnsupportedOption {
            architecture: "this model".into(),
            option: "videos".into(),
            hint: "Give some of its frames as pictures, or load Qwen3.5, Qwen3-VL, Qwen2.5-VL or SmolVLM.".into(),
        })
    }

    /// Takes the rows of a video's frames of this size, one frame after another.
    ///
    /// # Errors
    /// `UnsupportedOption` without videos; `Request` for sizes that the processor refuses, and for too many frames.
    pub fn film(&self, width: usize, height: usize, frames: usize) -> Result<Intake> {
        let films = self.films()?;
        Ok(Intake::new(&films.processor, films.layout(width, height, frames)?))
    }

    /// The tiles of a picture that lies in memory as a whole, with its sizes.
    ///
    /// # Errors
    /// `Request` for sizes that the processor refuses.
    pub fn whole(&self, picture: &Picture) -> Result<Intake> {
        let mut intake = self.intake(picture.width, picture.height)?;
        intake.push(&picture.rgb, 3)?;
        Ok(intake)
    }

    /// The same of a file.
    ///
    /// # Errors
    /// `Request` for files that cannot be decoded and sizes that the processor refuses.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn file(&self, bytes: &[u8]) -> Result<Intake> {
        self.whole(&crate::vision::decode::decode(bytes, self.processor.white)?)
    }

    /// Encodes a picture, unless one of the same content was before, or a video, with the seconds at which its frames show and
    /// that of its end; the tower is loaded when it is needed.
    ///
    /// # Errors
    /// `Request` when rows are missing, or seconds of a video; what loading the tower and the device report.
    pub async fn see(&self, intake: Intake, seconds: &[f64]) -> Result<Seen> {
        let layout = intake.layout().clone();
        let tiles = intake.finish()?;
        let content = content(&tiles, seconds);
        let (processor, together, interval) = match seconds {
            [] => (&self.processor, 1, 0.0),
            _ => self.films().map(|films| (&films.processor, films.together(), films.interval(seconds)))?,
        };
        let counts =
            |s: &&[f64]| s.len() == tiles.len() + 1 && s.is_sorted() && s[0] >= 0.0 && s[tiles.len()].is_finite();
        if !seconds.is_empty() && Some(seconds).filter(counts).is_none() {
            let reason = format!("its {} frames need as many growing times in seconds, and the end", tiles.len());
            return Err(Error::Request { parameter: "video".into(), reason });
        }
        let start = now_ms();
        let mut eye = self.eye.lock().await;
        let known = self.album.borrow_mut().find(content);
        let picture = match known {
            Some(picture) => picture,
            None => {
                let eye = match &mut *eye {
                    Some(eye) => eye,
                    none => none.insert(self.load().await?),
                };
                let mut encoded = eye.encode(&self.gpu, &tiles, together, processor).await?;
                encoded.interval = interval;
                // How long it took shows when it is done.
                self.gpu.wait_idle().await?;
                self.encodes.set(self.encodes.get() + 1);
                self.album.borrow_mut().add(content, encoded)
            }
        };
        let ms = if known.is_some() { 0.0 } else { now_ms() - start };
        self.untold_ms.set(self.untold_ms.get() + ms);
        let tiles = layout.tile_sizes().map(|(h, w)| (w, h)).collect();
        self.layouts.borrow_mut().insert(picture, (layout, seconds.to_vec()));
        let album = self.album.borrow();
        self.layouts.borrow_mut().retain(|picture, _| album.tokens(*picture) > 0);
        Ok(Seen { picture, tokens: album.tokens(picture), grids: album.grids(picture), tiles, ms })
    }

    async fn load(&self) -> Result<Eye> {
        let files = Files::examine(&self.source, self.gguf.as_deref()).await?;
        Eye::load(&self.gpu, &self.source, files, self.options).await
    }

    /// Whether a picture can still be named; it then stays longer than others.
    pub fn knows(&self, picture: u32) -> bool {
        self.album.borrow_mut().touch(picture)
    }

    /// A picture's rows, `[tokens, columns of the language model]`, tile after tile, each row by row.
    ///
    /// # Errors
    /// `Request` for a number of no picture; `NotFinite` when they are no numbers.
    pub async fn rows(&self, picture: u32) -> Result<Vec<f32>> {
        let encoded = self.album.borrow().encoded(picture)?;
        let rows = encoded.read(&self.gpu).await?;
        // The features of deeper layers lie beside.
        let cols = encoded.cols / self.features;
        Ok(narrowed(rows, encoded.cols, cols))
    }

    /// Gives the tower's memory back; the next picture loads it again. Encoded pictures stay.
    pub async fn unload_tower(&self) {
        self.eye.lock().await.take();
    }

    /// How many pictures were encoded so far.
    pub fn encodes(&self) -> usize {
        self.encodes.get()
    }

    /// Bytes of the tower on the device; 0 while it is not loaded.
    pub fn tower_bytes(&self) -> u64 {
        self.eye.try_lock().and_then(|eye| eye.as_ref().map(Eye::bytes)).unwrap_or(0)
    }

    /// Milliseconds of encoding since this was asked last.
    pub(super) fn take_ms(&self) -> f64 {
        self.untold_ms.take()
    }

    /// Puts what stands for pictures and videos in the place of the template's placeholders, in their order.
    ///
    /// # Errors
    /// `Request` for a number of no picture; `ChatTemplate` when the template writes other than one placeholder a picture.
    pub(super) fn expand(&self, prompt: &mut Prompt, pictures: &[u32]) -> Result<()> {
        let layouts = self.layouts.borrow();
        let (mut stills, mut films) = (Vec::new(), Vec::new());
        for picture in pictures {
            let (layout, seconds) = layouts.get(picture).ok_or_else(|| Album::missing(*picture))?;
            match seconds[..] {
                [] => stills.push(self.processor.expansion(layout, &self.marks)?),
                _ => films.push(self.films()?.text(layout, seconds, &self.marks)),
            }
        }
        for (mark, texts, kind) in [(&self.marks.placeholder, stills, "pictures"), (&self.marks.video, films, "videos")]
        {
            let found = if texts.is_empty() { 0 } else { prompt.replace(mark, &texts) };
            if found != texts.len() {
                let count = texts.len();
                let reason =
                    format!("it writes {found} times {mark} for {count} {kind}; it may not read {kind} at all");
                return Err(Error::ChatTemplate { reason });
            }
        }
        Ok(())
    }

    /// The tokens whose places the rows of pictures take, each with its picture.
    ///
    /// # Errors
    /// `Tokenizer` when there is none.
    pub(super) fn placed(&self, tokenizer: &Tokenizer, pictures: &[u32]) -> Result<Vec<(u32, u32)>> {
        let layouts = self.layouts.borrow();
        let mark = |picture: &u32| match &self.films {
            Some(films) if layouts.get(picture).is_some_and(|(_, seconds)| !seconds.is_empty()) => {
                films.mark(&self.marks)
            }
            _ => self.marks.image.as_str(),
        };
        let missing = |mark| Error::Tokenizer { reason: format!("it has no token {mark}, which stands for pictures") };
        let placed = |picture| {
            let mark = mark(picture);
            Ok((tokenizer.token_to_id(mark).ok_or_else(|| missing(mark))?, *picture))
        };
        pictures.iter().map(placed).collect()
    }
}

/// The numbers of the pictures in a conversation, in their order.
pub(super) fn pictures_of(messages: &[Value]) -> Vec<u32> {
    let parts = messages.iter().filter_map(|m| m.get("content")?.as_array()).flatten();
    parts.filter_map(|part| part.get("picture")?.as_u64()).map(|n| n as u32).collect()
}

/// Texts as lists of parts, for templates that read nothing else.
pub(super) fn listed(messages: &mut [Value]) {
    for content in messages.iter_mut().filter_map(|m| m.get_mut("content")) {
        if let Some(text) = content.as_str() {
            *content = json!([{ "type": "text", "text": text }]);
        }
    }
}
