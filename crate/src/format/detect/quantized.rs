//! The quantized weights of a safetensors checkpoint, one way of storing them after another: which tensors belong together, and what
//! their shapes say.

use super::{Finder, QUANT_STATE, float, part};
use crate::Result;
use crate::format::encoding::{Encoding, Role, WeightSource};
use crate::format::layout::Float;
use crate::format::{Dtype, TensorInfo};
use serde_json::Value;

impl Finder<'_> {
    /// GPTQ and AWQ, told apart by whether codes are packed along the inputs or the outputs.
    pub(super) fn qweight(&self, base: &str, name: &str, info: &TensorInfo) -> Result<WeightSource> {
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
    pub(super) fn packed(&self, base: &str, name: &str, info: &TensorInfo) -> Result<WeightSource> {
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

    pub(super) fn mxfp4_blocks(&self, base: &str, info: &TensorInfo) -> Result<WeightSource> {
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
    pub(super) fn mlx(&self, base: &str, name: &str, info: &TensorInfo) -> Result<WeightSource> {
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
    pub(super) fn fp8(&self, base: &str, name: &str, info: &TensorInfo) -> Result<WeightSource> {
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
    pub(super) fn int8(&self, base: &str, name: &str, info: &TensorInfo) -> Result<WeightSource> {
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
    pub(super) fn bytes(&self, base: &str, name: &str, info: &TensorInfo) -> Result<WeightSource> {
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

/// The shape with another last dimension.
fn last(shape: &[usize], cols: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    if let Some(last) = shape.last_mut() {
        *last = cols;
    }
    shape
}
