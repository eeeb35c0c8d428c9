//! Which tensors make up each weight of a safetensors checkpoint, and how they encode it: read off the tensors' names,
//! types and shapes and the quantization block of config.json, never off a repository's name. Knows no architecture.

use super::encoding::{Encoding, Part, Role, WeightSource};
use super::layout::Float;
use super::{Checkpoint, Dtype, TensorInfo};
use crate::util::map::SortedMap;
use crate::{Error, Result};
use serde_json::Value;

/// The weights of a model by the names that its architecture knows.
#[derive(Debug, Clone, Default)]
pub struct Weights {
    sources: SortedMap<String, WeightSource>,
    refused: SortedMap<String, Error>,
}

impl Weights {
    /// Weights from a list of them.
    pub fn from_list(list: Vec<WeightSource>) -> Weights {
        Weights { sources: list.into_iter().map(|s| (s.name.clone(), s)).collect(), refused: SortedMap::new() }
    }

    /// The weight of that name; an error that says what it is instead where it cannot be read.
    pub fn get(&self, name: &str, architecture: &str) -> Result<&WeightSource> {
        if let Some(source) = self.sources.get(name) {
            return Ok(source);
        }
        Err(self
            .refused
            .get(name)
            .cloned()
            .unwrap_or_else(|| Error::MissingTensor { tensor: name.into(), architecture: architecture.into() }))
    }

    /// Whether there is a weight of that name, readable or not.
    pub fn contains(&self, name: &str) -> bool {
        self.sources.contains_key(name) || self.refused.contains_key(name)
    }

    /// All weights that can be read, by name.
    pub fn iter(&self) -> impl Iterator<Item = &WeightSource> {
        self.sources.values()
    }

    /// The weights that cannot be read, with the reason.
    pub fn refused(&self) -> impl Iterator<Item = (&str, &Error)> {
        self.refused.iter().map(|(name, error)| (name.as_str(), error))
    }

    /// All weights that can be read, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut WeightSource> {
        self.sources.values_mut()
    }

    /// Gives weights other names; those for which `name` has none keep theirs.
    pub fn rename(&mut self, name: impl Fn(&str) -> Option<String>) {
        let renamed = |old: String| name(&old).unwrap_or(old);
        self.sources = std::mem::take(&mut self.sources)
            .into_values()
            .map(|mut source| {
                source.name = renamed(source.name);
                (source.name.clone(), source)
            })
            .collect();
        self.refused = std::mem::take(&mut self.refused).into_iter().map(|(old, e)| (renamed(old), e)).collect();
    }

    pub(super) fn insert(&mut self, name: &str, source: Result<WeightSource>) {
        match source {
            Ok(source) => drop(self.sources.insert(source.name.clone(), source)),
            Err(error) => drop(self.refused.insert(name.into(), error)),
        }
    }
}

/// The small tensors whose bytes [`detect`] needs: bitsandbytes describes its 4-bit weights in JSON in a tensor.
pub fn side_tensors(checkpoint: &Checkpoint) -> Vec<&TensorInfo> {
    checkpoint.tensors.values().filter(|t| t.name.contains(QUANT_STATE) && t.bytes() < 1 << 16).collect()
}

const QUANT_STATE: &str = ".quant_state.bitsandbytes__";

/// Suffixes of tensors that belong to a weight of another suffix, which is looked at on its own.
const PARTS: [&str; 17] = [
    ".qzeros",
    ".g_idx",
    ".weight_scale",
    ".weight_scale_inv",
    ".weight_zero_point",
    ".weight_g_idx",
    ".weight_shape",
    ".weight_global_scale",
    ".input_scale",
    ".input_global_scale",
    ".weight.absmax",
    ".weight.quant_map",
    ".weight.nested_absmax",
    ".weight.nested_quant_map",
    ".SCB",
    ".weight_format",
    "_scales",
];

/// How weight norms are named: the directions of rows, and their lengths.
const NORMED: [[&str; 2]; 2] =
    [[".parametrizations.weight.original1", ".parametrizations.weight.original0"], [".weight_v", ".weight_g"]];

/// Finds the weights of a checkpoint. `side` holds the bytes of [`side_tensors`] by name.
pub fn detect(config: &Value, checkpoint: &Checkpoint, side: &SortedMap<String, Vec<u8>>) -> Weights {
    let finder = Finder { checkpoint, config, side };
    let mut out = Weights::default();
    for (name, info) in &checkpoint.tensors {
        if let Some((canonical, source)) = finder.weight(name, info) {
            out.insert(&canonical, source);
        }
    }
    split_experts(&mut out);
    if finder.method() == "bitnet" && finder.quantization("quantization_mode") == "online" {
        ternarize(&mut out);
    }
    out
}

/// BitNet's master weights stand for ternary ones; embeddings and head are plain numbers.
fn ternarize(weights: &mut Weights) {
    let plain = |name: &str| name.contains("embed") || name.ends_with("lm_head.weight");
    for weight in weights.iter_mut().filter(|w| w.shape.len() == 2 && !plain(&w.name)) {
        if let Encoding::Dense(float) = weight.encoding {
            weight.encoding = Encoding::Ternarized(float);
        }
    }
}

struct Finder<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a Value,
    side: &'a SortedMap<String, Vec<u8>>,
}

impl<'a> Finder<'a> {
    fn tensor(&self, base: &str, suffix: &str) -> Option<&'a TensorInfo> {
        self.checkpoint.tensors.get(&format!("{base}{suffix}"))
    }

    /// A field of the quantization block, wherever the file keeps it.
    fn quantization(&self, field: &str) -> &'a Value {
        let config = self.config;
        let blocks = [
            &config["quantization"],
            &config["quantization_config"],
            &config["text_config"]["quantization_config"],
            &config["text_config"]["quantization"],
        ];
        blocks.iter().map(|b| &b[field]).find(|v| !v.is_null()).unwrap_or(&Value::Null)
    }

    fn method(&self) -> &'a str {
        self.quantization("quant_method").as_str().unwrap_or_default()
    }

    fn number(&self, field: &str) -> Option<usize> {
        self.quantization(field).as_u64().and_then(|n| usize::try_from(n).ok())
    }

    /// The size of `groups` groups of `k` inputs, of which the last may be short: what the configuration says, else a usual
    /// size, else even parts.
    fn group_of(&self, k: usize, groups: usize) -> usize {
        let fits = |g: &usize| *g > 0 && k.div_ceil(*g) == groups;
        let given = self.number("group_size").filter(fits);
        given.or_else(|| [128, 64, 32, 16, 256, 512, 1024].into_iter().find(fits)).unwrap_or(k / groups.max(1))
    }

    /// The weight that this tensor is the main part of, with the name it goes by; None for the other parts.
    fn weight(&self, name: &str, info: &TensorInfo) -> Option<(String, Result<WeightSource>)> {
        if let Some(base) = name.strip_suffix(".qweight") {
            let name = format!("{base}.weight");
            return Some((name.clone(), self.qweight(base, &name, info)));
        }
        if let Some(base) = name.strip_suffix(".weight_packed") {
            let name = format!("{base}.weight");
            return Some((name.clone(), self.packed(base, &name, info)));
        }
        if let Some(base) = name.strip_suffix("_blocks").filter(|b| self.tensor(b, "_scales").is_some()) {
            return Some((base.to_string(), self.mxfp4_blocks(base, info)));
        }
        for [direction, length] in NORMED {
            if name.ends_with(length) {
                return None;
            }
            let Some(base) = name.strip_suffix(direction) else { continue };
            let Some(lengths) = self.tensor(base, length) else { continue };
            let name = format!("{base}.weight");
            return Some((name.clone(), self.normed(&name, info, lengths)));
        }
        if self.is_part(name) {
            return None;
        }
        let base = name.strip_suffix(".weight").unwrap_or(name);
        let source = match info.dtype {
            Dtype::U32 if self.tensor(base, ".scales").is_some() => self.mlx(base, name, info),
            Dtype::F8E4M3 => self.fp8(base, name, info),
            Dtype::I8 => self.int8(base, name, info),
            Dtype::U8 => self.bytes(base, name, info),
            _ => match float(info.dtype) {
                Some(float) => Ok(single(name, info, Encoding::Dense(float))),
                None => Err(self.refuse(name, info, "Only floating point tensors and known encodings are read.")),
            },
        };
        Some((name.to_string(), source))
    }

    /// A weight norm's directions, whose rows are those of the first dimension, with their lengths.
    fn normed(&self, name: &str, info: &TensorInfo, lengths: &TensorInfo) -> Result<WeightSource> {
        let rows = info.shape.first().copied().unwrap_or(1);
        let known = float(info.dtype).filter(|_| lengths.dtype == info.dtype && lengths.elements() == rows as u64);
        let Some(float) = known else {
            return Err(self.refuse(name, info, "A weight norm has a length of the same type for each row."));
        };
        let shape = vec![rows, info.shape.get(1..).unwrap_or(&[]).iter().product()];
        let part = |role: Role, info: &TensorInfo| Part { role, info: info.clone() };
        let parts = vec![part(Role::Weight, info), part(Role::Scales, lengths)];
        Ok(WeightSource::new(name, shape, Encoding::Normed(float), parts))
    }

    /// Whether a tensor belongs to a weight that is found by another of its tensors.
    fn is_part(&self, name: &str) -> bool {
        if name.contains(QUANT_STATE) || PARTS.iter().any(|p| name.ends_with(p) && *p != "_scales") {
            return true;
        }
        if let Some(base) = name.strip_suffix("_scales") {
            return self.tensor(base, "_blocks").is_some();
        }
        let base = name.strip_suffix(".scales").or_else(|| name.strip_suffix(".biases"));
        base.is_some_and(|b| self.tensor(b, ".weight").is_some() || self.tensor(b, ".qweight").is_some())
    }

    fn refuse(&self, name: &str, info: &TensorInfo, hint: &str) -> Error {
        let method = self.method();
        let what = if method.is_empty() { String::new() } else { format!("{method} ") };
        Error::UnsupportedEncoding {
            tensor: name.into(),
            encoding: format!("{what}{} {:?}", info.dtype.name(), info.shape),
            hint: hint.into(),
        }
    }

    /// GPTQ and AWQ, told apart by whether codes are packed along the inputs or the outputs.
    fn qweight(&self, base: &str, name: &str, info: &TensorInfo) -> Result<WeightSource> {
        let refuse = |hint: &str| self.refuse(name, info, hint);
        let scales = self.tensor(base, ".scales").ok_or_else(|| refuse("Its scales are missing."))?;
        let scale = float(scales.dtype).ok_or_else(|| refuse("The scales are not floating-point."))?;
        let (&[lines, width], &[groups, n]) = (&info.shape[..], &scales.shape[..]) else {
            return Err(refuse("Its codes or scales are no matrix (AWQ's gemv and marlin versions are not read)."));
        };
        if info.dtype != Dtype::I32 && info.dtype != Dtype::U32 {
            return Err(refuse("Its codes are not 32-bit words."));
        }
        let mut parts = vec![part(Role::Weight, info), part(Role::Scales, scales)];
        parts.extend(self.tensor(base, ".qzeros").map(|t| part(Role::Zeros, t)));
        let zero_words = self.tensor(base, ".qzeros").and_then(|t| t.shape.get(1).copied());
        if width.checked_mul(8) == Some(n) && groups > 0 && zero_words == Some(width) {
            let group = self.group_of(lines, groups);
            return Ok(WeightSource::new(name, vec![n, lines], Encoding::Awq { group, scale }, parts));
        }
        if width != n || groups == 0 {
            return Err(refuse("Neither GPTQ's nor AWQ's (gemm) shapes; marlin and gemv versions are not read."));
        }
        let by_zeros = zero_words.and_then(|w| w.checked_mul(32)?.checked_div(n));
        let bits = by_zeros.or(self.number("bits")).filter(|b| matches!(b, 2 | 3 | 4 | 8));
        let bits = bits.ok_or_else(|| refuse("GPTQ is read with 2, 3, 4 and 8 bits."))?;
        let k = lines.checked_mul(32).map(|x| x / bits).ok_or_else(|| refuse("Its size overflows."))?;
        let format = self.quantization("checkpoint_format").as_str().unwrap_or("gptq");
        let minus_one = match format {
            "gptq_v2" => false,
            "gptq" => true,
            _ => return Err(refuse(&format!("The checkpoint format {format} is not read; gptq and gptq_v2 are."))),
        };
        let group = self.group_of(k, groups);
        parts.extend(self.tensor(base, ".g_idx").filter(|t| t.shape == [k]).map(|t| part(Role::GroupIndex, t)));
        let encoding = Encoding::Gptq { bits: bits as u8, group, minus_one, scale };
        Ok(WeightSource::new(name, vec![n, k], encoding, parts))
    }

    /// compressed-tensors: packed integers, or nvfp4.
    fn packed(&self, base: &str, name: &str, info: &TensorInfo) -> Result<WeightSource> {
        let refuse = |hint: &str| self.refuse(name, info, hint);
        let scales = self.tensor(base, ".weight_scale").ok_or_else(|| refuse("Its weight_scale is missing."))?;
        let mut parts = vec![part(Role::Weight, info), part(Role::Scales, scales)];
        let [.., width] = info.shape[..] else { return Err(refuse("It is no matrix.")) };
        if info.dtype == Dtype::U8 && scales.dtype == Dtype::F8E4M3 {
            parts.extend(self.tensor(base, ".weight_global_scale").map(|t| part(Role::GlobalScale, t)));
            return Ok(WeightSource::new(name, last(&info.shape, width.saturating_mul(2)), Encoding::Nvfp4, parts));
        }
        let scale = float(scales.dtype).ok_or_else(|| refuse("The scales are not floating-point."))?;
        let (&[n, words], &[scale_rows, groups]) = (&info.shape[..], &scales.shape[..]) else {
            return Err(refuse("Its codes or scales are no matrix."));
        };
        let (bits, group) = self.compressed_group(base);
        let bits = bits.filter(|b| (2..=8).contains(b)).ok_or_else(|| refuse("Its num_bits is not 2 to 8."))?;
        if info.dtype != Dtype::I32 || scale_rows != n || groups == 0 {
            return Err(refuse("Its parts do not fit one another."));
        }
        let per_group = group.filter(|_| groups > 1).and_then(|g| g.checked_mul(groups));
        let k = per_group.or_else(|| words.checked_mul(32).map(|w| w / bits)).unwrap_or(0);
        let stream = k.checked_mul(bits).map(|x| x.div_ceil(32)) == Some(words);
        if !stream && k.div_ceil(32 / bits) != words {
            return Err(refuse("The number of its words fits no packing of its columns."));
        }
        parts.extend(self.tensor(base, ".weight_zero_point").map(|t| part(Role::Zeros, t)));
        parts.extend(self.tensor(base, ".weight_g_idx").map(|t| part(Role::GroupIndex, t)));
        let group = if groups == 1 { k } else { k.div_ceil(groups) };
        Ok(WeightSource::new(
            name,
            vec![n, k],
            Encoding::PackQuantized { bits: bits as u8, group, stream, scale },
            parts,
        ))
    }

    /// Bits and group size of the first configuration group that may mean this module.
    fn compressed_group(&self, base: &str) -> (Option<usize>, Option<usize>) {
        let groups = self.quantization("config_groups").as_object();
        let named = |g: &Value| {
            g["targets"].as_array().is_some_and(|t| t.iter().filter_map(Value::as_str).any(|t| base.ends_with(t)))
        };
        let mut all = groups.into_iter().flat_map(|g| g.values());
        let chosen = all.clone().find(|g| named(g)).or_else(|| all.next()).map(|g| &g["weights"]);
        let field = |f: &str| chosen.and_then(|w| w[f].as_u64()).and_then(|n| usize::try_from(n).ok());
        (field("num_bits"), field("group_size").filter(|g| *g > 0))
    }

    fn mxfp4_blocks(&self, base: &str, info: &TensorInfo) -> Result<WeightSource> {
        let scales = self.tensor(base, "_scales").filter(|s| s.dtype == Dtype::U8 && info.dtype == Dtype::U8);
        match (&info.shape[..], scales) {
            ([lead @ .., n, blocks, 16], Some(scales)) if scales.shape == [lead, &[*n, *blocks]].concat() => {
                let shape = [lead, &[*n, blocks.saturating_mul(32)]].concat();
                let parts = vec![part(Role::Weight, info), part(Role::Scales, scales)];
                Ok(WeightSource::new(base, shape, Encoding::Mxfp4Blocks, parts))
            }
            _ => Err(self.refuse(base, info, "Blocks of 16 bytes with one scale byte each are read.")),
        }
    }

    /// MLX: bits × group follows from the shapes; the configuration says how it divides, globally or by module.
    fn mlx(&self, base: &str, name: &str, info: &TensorInfo) -> Result<WeightSource> {
        let refuse = |hint: &str| self.refuse(name, info, hint);
        let scales = self.tensor(base, ".scales").ok_or_else(|| refuse("Its scales are missing."))?;
        let (Some(&words), Some(&groups)) = (info.shape.last(), scales.shape.last()) else {
            return Err(refuse("It is no matrix."));
        };
        let product = words.checked_mul(32).and_then(|b| b.checked_div(groups)).unwrap_or(0);
        let mut parts = vec![part(Role::Weight, info), part(Role::Scales, scales)];
        if scales.dtype == Dtype::U8 {
            let (encoding, bits) = match product {
                128 => (Encoding::MlxMxfp4, 4),
                256 => (Encoding::MlxMxfp8, 8),
                64 => (Encoding::Nvfp4, 4),
                _ => return Err(refuse("Scales in bytes are read for the modes mxfp4, mxfp8 and nvfp4.")),
            };
            return Ok(WeightSource::new(name, last(&info.shape, words * 32 / bits), encoding, parts));
        }
        let biases = self.tensor(base, ".biases").filter(|b| b.dtype == scales.dtype && b.shape == scales.shape);
        let biases = biases.ok_or_else(|| refuse("Its biases are missing or unlike its scales."))?;
        parts.push(part(Role::Biases, biases));
        let scale = float(scales.dtype).ok_or_else(|| refuse("The scales are not floating-point."))?;
        let module = self.quantization(base);
        let given = |field: &str| module[field].as_u64().map(|n| n as usize).or_else(|| self.number(field));
        let (bits, group) = mlx_group(product, given("bits"), given("group_size"))
            .ok_or_else(|| refuse("Its words and scales fit no bit width of 2, 3, 4, 5, 6 or 8."))?;
        let k = words.checked_mul(32).map_or(0, |b| b / bits);
        if k % group != 0 || groups.checked_mul(group) != Some(k) {
            return Err(refuse("Its words and scales do not fit one another."));
        }
        let encoding = Encoding::MlxAffine { bits: bits as u8, group, scale };
        Ok(WeightSource::new(name, last(&info.shape, k), encoding, parts))
    }

    /// 8-bit floats with the scale of a block, a row or the whole tensor.
    fn fp8(&self, base: &str, name: &str, info: &TensorInfo) -> Result<WeightSource> {
        let refuse = |hint: &str| self.refuse(name, info, hint);
        let scales = self.tensor(base, ".weight_scale_inv").or_else(|| self.tensor(base, ".weight_scale"));
        let scales = scales.ok_or_else(|| refuse("It has neither weight_scale nor weight_scale_inv."))?;
        let scale = float(scales.dtype).ok_or_else(|| refuse("The scales are not floating-point."))?;
        let &[n, k] = &info.shape[..] else { return Err(refuse("It is no matrix.")) };
        let block = self.quantization("weight_block_size").as_array().and_then(|b| {
            let side = |i: usize| b.get(i).and_then(Value::as_u64).and_then(|x| usize::try_from(x).ok());
            Some((side(0).filter(|s| *s > 0)?, side(1).filter(|s| *s > 0)?))
        });
        let count = scales.elements();
        let candidates = [Some((n, k)), Some((1, k)), block, Some((128, 128))];
        let fits = |(rows, cols): &(usize, usize)| {
            (n.div_ceil((*rows).max(1)) as u64).checked_mul(k.div_ceil((*cols).max(1)) as u64) == Some(count)
        };
        let block = candidates.into_iter().flatten().find(fits);
        let block = block.ok_or_else(|| refuse("Its scales belong to neither blocks nor rows nor the tensor."))?;
        let parts = vec![part(Role::Weight, info), part(Role::Scales, scales)];
        Ok(WeightSource::new(name, vec![n, k], Encoding::Fp8 { block, scale }, parts))
    }

    /// Signed bytes: bitsandbytes with SCB, compressed-tensors with weight_scale.
    fn int8(&self, base: &str, name: &str, info: &TensorInfo) -> Result<WeightSource> {
        let &[n, k] = &info.shape[..] else {
            return Err(self.refuse(name, info, "It is no matrix."));
        };
        if let Some(scb) = self.tensor(base, ".SCB").filter(|s| s.dtype == Dtype::F32 && s.elements() == n as u64) {
            let parts = vec![part(Role::Weight, info), part(Role::Scales, scb)];
            return Ok(WeightSource::new(name, vec![n, k], Encoding::Bnb8, parts));
        }
        let scales = self.tensor(base, ".weight_scale").filter(|s| s.elements() == 1 || s.elements() == n as u64);
        match scales.and_then(|s| Some((s, float(s.dtype)?))) {
            Some((scales, scale)) if self.tensor(base, ".weight_zero_point").is_none() => {
                let parts = vec![part(Role::Weight, info), part(Role::Scales, scales)];
                Ok(WeightSource::new(name, vec![n, k], Encoding::Int8 { scale }, parts))
            }
            _ => Err(self.refuse(name, info, "Signed bytes are read with SCB or a symmetric weight_scale per row.")),
        }
    }

    /// Unsigned bytes: bitsandbytes' 4 bits and BitNet.
    fn bytes(&self, base: &str, name: &str, info: &TensorInfo) -> Result<WeightSource> {
        let refuse = |hint: &str| self.refuse(name, info, hint);
        let state = ["nf4", "fp4"].iter().find_map(|t| self.tensor(name, &format!("{QUANT_STATE}{t}")));
        if let Some(state) = state {
            return self.bnb4(name, info, state);
        }
        let scales = self.tensor(base, ".weight_scale").filter(|s| s.elements() == 1);
        let (Some(scales), "bitnet", &[quarter, k]) = (scales, self.method(), &info.shape[..]) else {
            return Err(refuse("Bytes are read as bitsandbytes nf4 or fp4 and as packed BitNet."));
        };
        let scale = float(scales.dtype).ok_or_else(|| refuse("Its scale is no float."))?;
        let divide = self.quantization("linear_class") != "autobitlinear";
        let parts = vec![part(Role::Weight, info), part(Role::Scales, scales)];
        Ok(WeightSource::new(name, vec![quarter.saturating_mul(4), k], Encoding::BitNet { divide, scale }, parts))
    }

    fn bnb4(&self, name: &str, info: &TensorInfo, state: &TensorInfo) -> Result<WeightSource> {
        let refuse = |hint: &str| self.refuse(name, info, hint);
        let json = self.side.get(&state.name).and_then(|b| serde_json::from_slice::<Value>(b).ok());
        let json = json.ok_or_else(|| refuse("Its quant_state is missing or no JSON."))?;
        let number = |f: &str| json[f].as_u64().and_then(|n| usize::try_from(n).ok());
        let shape: Option<Vec<usize>> =
            json["shape"].as_array().map(|s| s.iter().filter_map(|d| d.as_u64().map(|d| d as usize)).collect());
        let shape = shape.filter(|s| !s.is_empty()).ok_or_else(|| refuse("Its quant_state has no shape."))?;
        let (absmax, map) = (self.tensor(name, ".absmax"), self.tensor(name, ".quant_map"));
        let (Some(absmax), Some(map)) = (absmax, map) else {
            return Err(refuse("Its absmax or quant_map is missing."));
        };
        let mut parts = vec![part(Role::Weight, info), part(Role::Scales, absmax), part(Role::QuantMap, map)];
        let nested_block = match (self.tensor(name, ".nested_absmax"), self.tensor(name, ".nested_quant_map")) {
            (Some(scales), Some(map)) => {
                parts.extend([part(Role::NestedScales, scales), part(Role::NestedMap, map)]);
                Some(number("nested_blocksize").filter(|b| *b > 0).unwrap_or(256))
            }
            _ => None,
        };
        let dtype = match json["dtype"].as_str() {
            Some("float16") => Float::F16,
            Some("float32") => Float::F32,
            _ => Float::BF16,
        };
        let block = number("blocksize").filter(|b| *b > 0).unwrap_or(64);
        let nested_offset = json["nested_offset"].as_f64().unwrap_or(0.0) as f32;
        Ok(WeightSource::new(name, shape, Encoding::Bnb4 { block, nested_block, nested_offset, dtype }, parts))
    }
}

/// Bits and group of an MLX weight whose bits × group is `product`, as near to what the configuration says as fits.
fn mlx_group(product: usize, bits: Option<usize>, group: Option<usize>) -> Option<(usize, usize)> {
    let fits = |bits: usize, group: usize| {
        (matches!(bits, 2..=6 | 8) && group > 0 && bits * group == product).then_some((bits, group))
    };
    let by_both = bits.zip(group).and_then(|(b, g)| fits(b, g));
    let by_group = || group.filter(|g| *g > 0).and_then(|g| fits(product / g, g));
    let by_bits = || bits.filter(|b| *b > 0).and_then(|b| fits(b, product / b));
    by_both.or_else(by_group).or_else(by_bits).or_else(|| [64, 32, 128].iter().find_map(|g| fits(product / g, *g)))
}

/// MLX stacks experts as `switch_mlp`, others as tensors of `experts`; graphs have them one by one.
fn split_experts(weights: &mut Weights) {
    let stacks = |s: &&WeightSource| s.name.contains(".experts.") && s.shape.len() == 3;
    let stacked: Vec<WeightSource> = weights.sources.values().filter(stacks).cloned().collect();
    for source in stacked {
        let &[experts, n, k] = &source.shape[..] else { continue };
        let Some((path, part)) = source.name.split_once(".experts.") else { continue };
        let part = part.trim_end_matches(".weight");
        for e in 0..experts.min(4096) {
            let name = format!("{path}.experts.{e}.{part}.weight");
            if let Some(slice) = source.slice(&name, e * n, vec![n, k]) {
                weights.sources.get_or_insert_with(name, || slice);
            }
        }
        weights.sources.remove(&source.name);
    }
    let stacked: Vec<WeightSource> =
        weights.sources.values().filter(|s| s.name.contains(".switch_mlp.") && s.shape.len() == 3).cloned().collect();
    for source in stacked {
        let &[experts, n, k] = &source.shape[..] else { continue };
        for e in 0..experts.min(4096) {
            let name = source.name.replace(".switch_mlp.", &format!(".experts.{e}."));
            if let Some(slice) = source.slice(&name, e * n, vec![n, k]) {
                weights.sources.get_or_insert_with(name, || slice);
            }
        }
    }
}

/// The shape with another last dimension.
fn last(shape: &[usize], cols: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    if let Some(last) = shape.last_mut() {
        *last = cols;
    }
    shape
}

fn part(role: Role, info: &TensorInfo) -> Part {
    Part { role, info: info.clone() }
}

fn single(name: &str, info: &TensorInfo, encoding: Encoding) -> WeightSource {
    WeightSource::new(name, info.shape.clone(), encoding, vec![part(Role::Weight, info)])
}

/// The floating point type of a tensor that holds plain numbers.
pub fn float(dtype: Dtype) -> Option<Float> {
    match dtype {
        Dtype::F32 => Some(Float::F32),
        Dtype::F16 => Some(Float::F16),
        Dtype::BF16 => Some(Float::BF16),
        _ => None,
    }
}
