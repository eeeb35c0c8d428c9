//! Model files: configuration, tensors and weights, read from safetensors, MLC or GGUF.

#[cfg(not(target_arch = "wasm32"))]
mod estimate;
mod inspect;
mod missing;

#[cfg(not(target_arch = "wasm32"))]
pub use estimate::{StateBytes, StepEstimate};
pub use inspect::{Inspection, WeightReport};
pub(crate) use missing::explain_missing;

use super::tied::{HEAD_TENSORS, has_separate_head};
use super::weight_store::{SharedWeights, WeightName};
use crate::arch::speech::SpeechGraphs;
use crate::arch::{self, Container, EncoderGraph, EncoderHead, HeadlessEncoder, LoadConfig};
use crate::format::gguf::mmproj::{self, MmprojSpec};
use crate::format::gguf::{self, Gguf, config::FACTOR_TENSORS, config::RopeFactors};
use crate::format::{
    Checkpoint, Float, PartRole, TensorInfo, Weights, detect,
    detect::{metadata_tensors, needs_quantize_config},
    mlc,
};
use crate::gpu::Buffer;
use crate::hub::{Chunk, Source};
use crate::ir::Graph;
use crate::util::map::SortedMap;
use crate::{Error, Result};
use serde_json::Value;

/// Opened files of a model.
#[derive(Debug)]
pub struct ModelFiles {
    /// config.json, or its equivalent made from GGUF or MLC metadata, completed from the tensors.
    pub config: LoadConfig,
    /// The tensors as the containers store them.
    pub checkpoint: Checkpoint,
    /// Weights by Hugging Face name.
    pub weights: Weights,
    /// The GGUF header, which contains the tokenizer.
    pub gguf: Option<Gguf>,
    /// The weights that the graphs of the checkpoint have on the device.
    pub(super) store: SharedWeights,
    /// The graph of `config`, if it was needed to open the files; the load takes it.
    graph: Option<ModelGraph>,
}

/// The graph of a model, built once a load.
#[derive(Debug)]
enum ModelGraph {
    Decoder(Graph),
    Speech(Box<SpeechGraphs>),
    Encoder(HeadlessEncoder),
}

/// What files are opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GraphPurpose {
    /// To generate; a model that cannot is refused.
    Generate,
    /// To generate or to inspect.
    Inspect,
    /// To encode packed sequences.
    Encode,
    /// For the vision encoder alone.
    Vision,
}

impl ModelGraph {
    fn build(config: &LoadConfig, purpose: GraphPurpose) -> Result<Self> {
        if purpose == GraphPurpose::Encode {
            return arch::headless_encoder(config).map(Self::Encoder);
        }
        Ok(match arch::speech_graphs(config)? {
            Some(speech) => Self::Speech(Box::new(speech)),
            None => Self::Decoder(arch::graph(config)?),
        })
    }

    /// The graph with the layers that the model's main weights belong to.
    fn layers(&self) -> &Graph {
        match self {
            Self::Decoder(graph) => graph,
            Self::Speech(speech) => &speech.decoder,
            Self::Encoder(encoder) => encoder.graph(),
        }
    }

    /// Whether it can have an output head.
    fn is_decoder(&self) -> bool {
        !matches!(self, Self::Encoder(HeadlessEncoder::Encoder { .. }))
    }
}

impl ModelFiles {
    /// Wraps opened safetensors.
    pub fn new(mut config: LoadConfig, checkpoint: Checkpoint, weights: Weights) -> Self {
        complete(&mut config, &weights);
        Self {
            config,
            checkpoint,
            weights,
            gguf: None,
            store: SharedWeights::default(),
            graph: None,
        }
    }

    /// Takes the decoder's graph.
    ///
    /// # Errors
    /// Configurations that are not supported.
    pub(super) fn take_decoder_graph(&mut self) -> Result<Graph> {
        match self.graph.take() {
            Some(ModelGraph::Decoder(graph)) => Ok(graph),
            Some(ModelGraph::Speech(speech)) => Ok(speech.decoder),
            _ => arch::graph(&self.config),
        }
    }

    /// Checks that the checkpoint has a multi-token-prediction head that is supported.
    ///
    /// # Errors
    /// `UnsupportedOption` without one; configurations that are not supported.
    pub(super) fn check_mtp(&self) -> Result<Graph> {
        let graph = arch::mtp_graph(&self.config)?;
        let is_stored = |graph: &Graph| {
            let names = graph.weights.iter().flat_map(|weight| &weight.parts);
            let mut own = names.filter(|(name, _)| name.starts_with("mtp."));
            own.all(|(name, _)| self.weights.contains(name))
        };
        graph.filter(is_stored).ok_or_else(|| Error::UnsupportedOption {
            architecture: self.config.fields().architecture(),
            option: "draft: 'mtp'".into(),
            hint: "The checkpoint has no multi-token-prediction head ('mtp.fc.weight' and others) that is supported. Load it without 'draft', or pass the name of a smaller model.".into(),
        })
    }

    /// Selects the multi-token-prediction head as the graph to load, next to the decoder in `store`.
    /// Returns the bytes of the weights that both use.
    ///
    /// # Errors
    /// As [`Self::check_mtp`].
    pub(super) fn select_mtp_head(&mut self, store: SharedWeights) -> Result<u64> {
        let graph = self.check_mtp()?;
        set_columns(&mut self.weights, &graph);
        let shared = store.borrow().resolve(&WeightName::all(&graph), None);
        let shared = shared.values().map(Buffer::size).sum();
        self.store = store;
        self.graph = Some(ModelGraph::Decoder(graph));
        Ok(shared)
    }

    /// The graphs of a speech-to-text model.
    pub fn speech_graphs(&self) -> Option<&SpeechGraphs> {
        match &self.graph {
            Some(ModelGraph::Speech(speech)) => Some(speech),
            _ => None,
        }
    }

    /// Returns the graph as an encoder, without a head.
    ///
    /// # Errors
    /// Configurations that are not supported.
    pub fn headless_encoder(&mut self) -> Result<&HeadlessEncoder> {
        let encoder = self.take_headless_encoder()?;
        match self.graph.insert(ModelGraph::Encoder(encoder)) {
            ModelGraph::Encoder(encoder) => Ok(encoder),
            _ => Err(Error::Internal("the files have no encoder".into())),
        }
    }

    fn take_headless_encoder(&mut self) -> Result<HeadlessEncoder> {
        match self.graph.take() {
            Some(ModelGraph::Encoder(encoder)) => Ok(encoder),
            _ => arch::headless_encoder(&self.config),
        }
    }

    /// Takes the graph as an encoder, with weights named as the checkpoint names them.
    ///
    /// # Errors
    /// Configurations that are not supported; a head that the model does not have.
    pub fn take_encoder_graph(&mut self, head: &EncoderHead) -> Result<EncoderGraph> {
        let encoder = self.take_headless_encoder()?;
        let mut encoder = encoder.with_head(&self.config, head)?;
        let stored = self.weights.iter().map(|weight| weight.name.as_str());
        arch::match_names(&mut encoder.graph, stored);
        set_columns(&mut self.weights, &encoder.graph);
        Ok(encoder)
    }

    /// Opens a model's files: the named GGUF file, else safetensors, else an MLC shard list.
    ///
    /// # Errors
    /// Errors of the source or the container readers; an unsupported architecture.
    pub async fn open(source: &Source, gguf: Option<&str>) -> Result<ModelFiles> {
        Self::read(source, gguf, GraphPurpose::Generate).await
    }

    /// Opens the preferred GGUF file of a source without other weights; `None` if it has none.
    ///
    /// # Errors
    /// Errors of the source or the container reader.
    pub async fn preferred_gguf(source: &Source) -> Result<Option<ModelFiles>> {
        match gguf::preferred_file(&source.list().await?) {
            Some(file) => Self::gguf(source, &file).await.map(Some),
            None => Ok(None),
        }
    }

    /// Opens a model's files without checking that the architecture is supported.
    ///
    /// # Errors
    /// Errors of the source or the container readers.
    pub async fn open_unchecked(source: &Source, gguf: Option<&str>) -> Result<ModelFiles> {
        Self::read(source, gguf, GraphPurpose::Inspect).await
    }

    /// Opens a model's files to load its vision encoder alone.
    ///
    /// # Errors
    /// Errors of the source or the container readers.
    pub async fn open_vision(source: &Source, gguf: Option<&str>) -> Result<ModelFiles> {
        Self::read(source, gguf, GraphPurpose::Vision).await
    }

    async fn read(
        source: &Source,
        gguf: Option<&str>,
        purpose: GraphPurpose,
    ) -> Result<ModelFiles> {
        if let Some(file) = gguf.or(source.gguf()) {
            return Self::gguf(source, file).await;
        }
        let Some(config) = Self::config(source).await? else {
            if let Some(files) = Self::mlc(source).await? {
                return Ok(files);
            }
            if let Some(files) = Self::preferred_gguf(source).await? {
                return Ok(files);
            }
            let error = source.read("config.json").await.err();
            let error = error.unwrap_or_else(|| changed_error(source));
            return Err(explain_missing(source, error).await);
        };
        if purpose == GraphPurpose::Generate {
            arch::check_generates(&config)?;
        }
        match Self::read_safetensors(source, config, &[], purpose).await {
            Err(error @ Error::MissingFile { .. }) => {
                if let Some(files) = Self::mlc(source).await? {
                    return Ok(files);
                }
                match Self::preferred_gguf(source).await? {
                    Some(files) => Ok(files),
                    None => Err(explain_missing(source, error).await),
                }
            }
            other => other,
        }
    }

    /// Reads config.json, if present. Infers a missing class and model type from tensor names.
    ///
    /// # Errors
    /// `Config` for invalid JSON, or when neither is named and the tensors match no family.
    pub async fn config(source: &Source) -> Result<Option<LoadConfig>> {
        let Some(bytes) = source.read_optional("config.json").await? else {
            return Ok(None);
        };
        let fault = |reason| Error::Config {
            file: "config.json".into(),
            reason,
        };
        let config: Value =
            serde_json::from_slice(&bytes).map_err(|e| fault(format!("invalid JSON: {e}")))?;
        if arch::is_named(&config) {
            return Ok(Some(config.into()));
        }
        let weights = detect(&config, &source.checkpoint().await?, &SortedMap::new());
        let tensors = weights
            .iter()
            .map(|w| (w.name.as_str(), w.shape.iter().product()));
        let reason = "'architectures' and 'model_type' are missing, and the tensors match no known family. Add 'model_type'.";
        arch::infer_family(&config, &tensors.collect::<Vec<_>>())
            .map(|config| Some(config.into()))
            .ok_or_else(|| fault(reason.into()))
    }

    /// Adds the weights of graphs that will be loaded one after another to the progress total.
    pub fn add_to_progress(&self, source: &Source, graphs: &[&Graph]) {
        let names = graphs
            .iter()
            .flat_map(|graph| &graph.weights)
            .flat_map(|weight| &weight.parts);
        let stored = names.filter_map(|(name, _)| self.weights.get(name, "").ok());
        let tensors: Vec<&TensorInfo> = stored
            .flat_map(|weight| &weight.parts)
            .map(|part| &part.info)
            .collect();
        source.expect_tensors(&self.checkpoint, &tensors);
    }

    /// Adds the weights of the decoder to the progress total, when another model loads first.
    ///
    /// # Errors
    /// Configurations that are not supported.
    pub fn add_decoder_to_progress(&mut self, source: &Source) -> Result<()> {
        let graph = self.take_decoder_graph()?;
        self.add_to_progress(source, &[&graph]);
        self.graph = Some(ModelGraph::Decoder(graph));
        Ok(())
    }

    /// Opens safetensors with a parsed configuration.
    pub async fn safetensors(source: &Source, config: LoadConfig) -> Result<ModelFiles> {
        Self::read_safetensors(source, config, &[], GraphPurpose::Inspect).await
    }

    /// Opens the safetensors of an encoder, including those of modules in subfolders; the folder
    /// name prefixes their tensor names.
    pub async fn encoder(
        source: &Source,
        config: LoadConfig,
        folders: &[&str],
    ) -> Result<ModelFiles> {
        Self::read_safetensors(source, config, folders, GraphPurpose::Encode).await
    }

    async fn read_safetensors(
        source: &Source,
        mut config: LoadConfig,
        folders: &[&str],
        purpose: GraphPurpose,
    ) -> Result<ModelFiles> {
        let mut checkpoint = source.checkpoint().await?;
        for folder in folders {
            let file = format!("{folder}/model.safetensors");
            let (size, header) = source.header(&file).await?;
            checkpoint.add(&file, size, header, &format!("{folder}/"))?;
        }
        let mut side = SortedMap::new();
        for tensor in metadata_tensors(&checkpoint) {
            side.insert(
                tensor.name.clone(),
                read(source, &checkpoint, tensor.file, &tensor.range).await?,
            );
        }
        for name in arch::scalar_tensors(&config) {
            let Some(tensor) = checkpoint.tensors.get(&name).filter(|t| t.elements() == 1) else {
                continue;
            };
            let bytes = read(source, &checkpoint, tensor.file, &tensor.range).await?;
            let number = super::load::float_of(tensor.dtype).and_then(|float| float.get(&bytes, 0));
            if let Some(number) = number {
                config.scalars.insert(name, f64::from(number));
            }
        }
        let quantized = read_quantize_config(source, config.json(), &checkpoint).await?;
        let fields = quantized.as_ref().unwrap_or(config.json());
        let mut weights = detect(fields, &checkpoint, &side);
        arch::sanitize(&mut config, &mut weights)?;
        if purpose != GraphPurpose::Encode {
            arch::add_body_prefix(&config, &mut weights);
        }
        set_tied_head(&mut config, &weights);
        let mut graph = match purpose {
            GraphPurpose::Generate => Some(ModelGraph::build(&config, purpose)?),
            GraphPurpose::Inspect | GraphPurpose::Encode => {
                ModelGraph::build(&config, purpose).ok()
            }
            GraphPurpose::Vision => None,
        };
        if let Some(built) = &graph
            && built.is_decoder()
            && has_separate_head(source, &checkpoint, &mut weights, built.layers()).await?
        {
            config.tied_head = Some(false);
            graph = Some(ModelGraph::build(&config, purpose)?);
        }
        if let Some(graph) = &graph {
            set_columns(&mut weights, graph.layers());
        }
        for weight in weights.iter_mut() {
            let Some(index) = weight.part(PartRole::GroupIndex).cloned() else {
                continue;
            };
            let groups = read(source, &checkpoint, index.file, &index.range).await?;
            let groups: Vec<u32> = groups
                .chunks_exact(4)
                .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect();
            match weight.encoding.column_order(&groups) {
                Ok(None) => weight.parts.retain(|p| p.role != PartRole::GroupIndex),
                Ok(order) => weight.column_order = order,
                // Uneven groups: the weight is dequantized.
                Err(_) => {}
            }
        }
        Ok(ModelFiles {
            config,
            checkpoint,
            weights,
            gguf: None,
            store: SharedWeights::default(),
            graph,
        })
    }

    /// Opens an MLC repository; `None` if it has no shard list.
    async fn mlc(source: &Source) -> Result<Option<ModelFiles>> {
        let utf8 = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        for list in mlc::SHARD_LISTS {
            let Some(text) = source.read_optional(list).await? else {
                continue;
            };
            let checkpoint = mlc::parse_shards(list, &utf8(&text))?;
            let chat = utf8(&source.read("mlc-chat-config.json").await?);
            let (config, family) = mlc::config(&chat, arch::find_mlc)?;
            let weights = Weights::from_list(mlc::weights(&checkpoint, &config, family)?);
            let config = arch::load_config(config, Container::Mlc);
            return Ok(Some(Self::new(config, checkpoint, weights)));
        }
        Ok(None)
    }

    async fn gguf(source: &Source, file: &str) -> Result<ModelFiles> {
        let header = Self::gguf_with_shards(source, file).await?;
        header.check_is_model()?;
        let file = header.file.as_str();
        let checkpoint = header.checkpoint();
        let mut factors = RopeFactors::default();
        for (name, values) in
            FACTOR_TENSORS
                .iter()
                .zip([&mut factors.all, &mut factors.long, &mut factors.short])
        {
            if let Some(tensor) = checkpoint
                .tensors
                .get(*name)
                .filter(|t| t.bytes() < 1 << 16)
            {
                let bytes = read(source, &checkpoint, tensor.file, &tensor.range).await?;
                values.extend((0..bytes.len() / 4).filter_map(|i| Float::F32.get(&bytes, i)));
            }
        }
        let family = arch::find_gguf(&header)?;
        let config = arch::load_config(header.config(family, &factors), Container::Gguf);
        let mut weights = header.weights(family);

        if family.original_row_orders {
            arch::set_row_orders(&config, &mut weights)?;
        }
        let file = file.to_string();
        let mut files = ModelFiles::new(config, checkpoint, weights);
        files.gguf = Some(header);
        let seen = |p: &MmprojSpec| p.architectures.contains(&family.name);
        if arch::mmproj_formats().any(seen)
            && let Some(tower) = mmproj::find_mmproj(&file, &source.list().await?)
        {
            let header = Self::header(source, &tower).await?;
            match arch::mmproj_formats().find(|p| seen(p) && p.name == header.projector_type()) {
                Some(projector) => files.add_mmproj(&header, projector)?,
                None => {
                    let reason = format!(
                        "the projector {} of {tower} with {}",
                        header.projector_type(),
                        family.name
                    );
                    files.config.refused_projector = Some(reason);
                }
            }
        }
        Ok(files)
    }

    /// Adds the vision encoder of an mmproj file.
    fn add_mmproj(&mut self, header: &Gguf, projector: &MmprojSpec) -> Result<()> {
        let mut json = self.config.json().clone();
        let processor = header.merge_vision_config(projector, &mut json)?;
        let tokens = self
            .gguf
            .as_ref()
            .and_then(|gguf| gguf.metadata.get("tokenizer.ggml.tokens"));
        if let Some(gguf::MetadataValue::Texts(tokens)) = tokens {
            let token = tokens
                .iter()
                .position(|token| token == projector.image_token);
            json["image_token_id"] = token.into();
        }
        let mut config = arch::load_config(json, Container::Gguf);
        complete(&mut config, &self.weights);
        config.image_processor = Some(processor);
        self.config = config;
        let file = self.checkpoint.files.len();
        let Checkpoint { files, tensors, .. } = header.checkpoint();
        self.checkpoint.files.extend(files);
        self.checkpoint.tensors.extend(
            tensors
                .into_iter()
                .map(|(name, info)| (name, TensorInfo { file, ..info })),
        );
        header.vision_weights(projector, file, &mut self.weights);
        Ok(())
    }

    /// Returns the header of the named GGUF file, else of the preferred one.
    pub(crate) async fn gguf_header(source: &Source) -> Result<Option<Gguf>> {
        let name = match source.gguf() {
            Some(file) => Some(file.to_string()),
            None => gguf::preferred_file(&source.list().await?),
        };
        match name {
            // The first part of a split model has the metadata.
            Some(file) => {
                let first = gguf::split_file_name(&file, 1).unwrap_or(file);
                Self::header(source, &first).await.map(Some)
            }
            None => Ok(None),
        }
    }

    /// Returns the header of a GGUF model with the tensors of all its shards; `file` may name any
    /// of them.
    async fn gguf_with_shards(source: &Source, file: &str) -> Result<Gguf> {
        let first = gguf::split_file_name(file, 1).unwrap_or_else(|| file.to_string());
        let lost = |number: usize, name: String, count: usize| Error::MissingFile {
            file: name,
            location: source.name().into(),
            hint: format!(
                "It is part {number} of {count} of {file}. Put all parts in the same folder."
            ),
        };
        let present = async |name: &str| Ok::<_, Error>(source.info(name).await?.is_some());
        let in_parts = gguf::parse_split_name(file).map_or(1, |(_, _, count)| count);
        if first != file && !present(&first).await? {
            return Err(lost(1, first, in_parts));
        }
        let mut header = Self::header(source, &first).await?;
        let count = header.file_count();
        for number in 2..=count {
            let name = gguf::split_file_name(&first, number).filter(|_| count == in_parts).ok_or_else(|| {
                Error::UnusableFile {
                    file: first.clone(),
                    reason: format!("it is one of {count} parts, but its name is not of the form NAME-00001-of-{count:05}.gguf"),
                    hint: "Give the parts their original names.".into(),
                }
            })?;
            if !present(&name).await? {
                return Err(lost(number, name, count));
            }
            header.append_file(Self::header(source, &name).await?)?;
        }
        Ok(header)
    }

    /// Reads the header of a GGUF file.
    async fn header(source: &Source, file: &str) -> Result<Gguf> {
        let info = source.info(file).await?;
        let size = info.map(|i| i.size).ok_or_else(|| Error::MissingFile {
            file: file.into(),
            location: source.name().into(),
            hint: "Pass the name of a .gguf file that it contains.".into(),
        })?;
        let mut start = Vec::new();
        let mut length = 1u64 << 20;

        loop {
            // Fetch whole ranges, so that a later load finds them in the cache.
            let range = start.len() as u64..length.min(size);

            source
                .stream(file, range, async |_, chunk: Chunk| {
                    start.extend(chunk.to_vec());
                    Ok(())
                })
                .await?;
            match gguf::parse(file, &start, size)? {
                Some(header) => return Ok(header),
                None => length = length.saturating_mul(2),
            }
        }
    }
}

/// Sets what the weights imply.
fn complete(config: &mut LoadConfig, weights: &Weights) {
    config.set_tensor_layout(weights.iter().map(|weight| weight.name.as_str()));
    set_tied_head(config, weights);
}

/// Without a head tensor, the embedding is the head.
fn set_tied_head(config: &mut LoadConfig, weights: &Weights) {
    if !HEAD_TENSORS.iter().any(|name| weights.contains(name)) {
        config.tied_head = Some(true);
    }
}

/// Adds quantize_config.json to config.json, which older GPTQ checkpoints leave without a
/// quantization block; `None` for other models.
async fn read_quantize_config(
    source: &Source,
    config: &Value,
    checkpoint: &Checkpoint,
) -> Result<Option<Value>> {
    const FILE: &str = "quantize_config.json";
    if !needs_quantize_config(config, checkpoint) {
        return Ok(None);
    }
    let Some(bytes) = source.read_optional(FILE).await? else {
        return Ok(None);
    };
    let block: Value = serde_json::from_slice(&bytes).map_err(|e| Error::Config {
        file: FILE.into(),
        reason: format!("invalid JSON: {e}"),
    })?;
    let mut config = config.clone();
    config["quantization_config"] = block;
    Ok(Some(config))
}

/// Corrects the columns of stored weights to those that a graph expects.
fn set_columns(weights: &mut Weights, graph: &Graph) {
    let cols: SortedMap<&str, usize> = graph
        .weights
        .iter()
        .flat_map(|w| w.parts.iter().map(|p| (p.0.as_str(), w.cols)))
        .collect();
    for weight in weights.iter_mut() {
        if let Some(cols) = cols.get(weight.name.as_str()) {
            weight.set_cols(*cols);
        }
    }
}

fn changed_error(source: &Source) -> Error {
    Error::Changed {
        file: source.name().into(),
    }
}

async fn read(
    source: &Source,
    checkpoint: &Checkpoint,
    file: usize,
    range: &std::ops::Range<u64>,
) -> Result<Vec<u8>> {
    let name = checkpoint
        .files
        .get(file)
        .map(|f| f.name.clone())
        .unwrap_or_default();
    source.read_range(&name, range.clone()).await
}
