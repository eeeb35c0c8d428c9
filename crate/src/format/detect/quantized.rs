//! Detects the quantized weights of a safetensors checkpoint: which tensors belong together and
//! what their shapes imply. One function per encoding.

use super::{QUANT_STATE, WeightFinder, float_type, stored_part};
use crate::Result;
use crate::format::encoding::{Encoding, PartRole, WeightSource};
use crate::format::layout::Float;
use crate::format::{Dtype, TensorInfo};
use crate::text;
use serde_json::Value;

impl WeightFinder<'_> {
    /// The tensor `base` + `suffix` of the weight `name`, which its encoding requires.
    fn required(
        &self,
        base: &str,
        suffix: &str,
        name: &str,
        info: &TensorInfo,
    ) -> Result<&TensorInfo> {
        self.tensor(base, suffix).ok_or_else(|| {
            let part = &suffix[1..];
            let hint = format!("Its '{part}' tensor is missing; download the checkpoint again.");
            self.unsupported(name, info, &hint)
        })
    }

    /// The float type of the scales of the weight `name`.
    fn float_scales(&self, scales: &TensorInfo, name: &str, info: &TensorInfo) -> Result<Float> {
        float_type(scales.dtype).ok_or_else(|| {
            let hint = "Its scales must be F32, F16 or BF16; convert the checkpoint again.";
            self.unsupported(name, info, hint)
        })
    }

    /// GPTQ and AWQ, distinguished by whether codes are packed along inputs or outputs.
    pub(super) fn gptq_or_awq(
        &self,
        base: &str,
        name: &str,
        info: &TensorInfo,
    ) -> Result<WeightSource> {
        let refuse = |hint: &str| self.unsupported(name, info, hint);
        let scales = self.required(base, ".scales", name, info)?;
        let scale = self.float_scales(scales, name, info)?;
        let (&[lines, width], &[groups, n]) = (&info.shape[..], &scales.shape[..]) else {
            return Err(refuse(
                "Its codes or scales are not 2-D; use GPTQ or AWQ of version gemm (gemv and marlin are not supported).",
            ));
        };
        if info.dtype != Dtype::I32 && info.dtype != Dtype::U32 {
            return Err(refuse(
                "Its codes must be I32 or U32; convert the checkpoint again.",
            ));
        }
        let packing = self.integer_packing().map_err(|hint| refuse(&hint))?;
        let mut parts = vec![
            stored_part(PartRole::Weight, info),
            stored_part(PartRole::Scales, scales),
        ];
        parts.extend(
            self.tensor(base, ".qzeros")
                .map(|t| stored_part(PartRole::Zeros, t)),
        );
        let zero_words = self
            .tensor(base, ".qzeros")
            .and_then(|t| t.shape.get(1).copied());
        if width.checked_mul(8) == Some(n) && groups > 0 && zero_words == Some(width) {
            let group = self.group_size(lines, groups);
            return Ok(WeightSource::new(
                name,
                vec![n, lines],
                Encoding::Awq { group, scale },
                parts,
            ));
        }
        if width != n || groups == 0 || packing == IntegerPacking::Awq {
            return Err(refuse(
                "Its shapes match neither GPTQ nor AWQ gemm; use one of them (marlin and gemv are not supported).",
            ));
        }
        let by_zeros = zero_words.and_then(|w| w.checked_mul(32)?.checked_div(n));
        let bits = by_zeros
            .or(self.number("bits"))
            .filter(|b| matches!(b, 2 | 3 | 4 | 8));
        let bits = bits.ok_or_else(|| {
            refuse("GPTQ is supported with 2, 3, 4 and 8 bits; use such a checkpoint.")
        })?;
        let k = lines
            .checked_mul(32)
            .map(|x| x / bits)
            .ok_or_else(|| refuse("Its size overflows; download the checkpoint again."))?;
        let group = self.group_size(k, groups);
        parts.extend(
            self.tensor(base, ".g_idx")
                .filter(|t| t.shape == [k])
                .map(|t| stored_part(PartRole::GroupIndex, t)),
        );
        let encoding = Encoding::Gptq {
            bits: bits as u8,
            group,
            minus_one: packing == IntegerPacking::Gptq,
            scale,
        };
        Ok(WeightSource::new(name, vec![n, k], encoding, parts))
    }

    /// How the quantization block says that GPTQ, AWQ or AutoRound packed the codes.
    ///
    /// # Errors
    /// The hint of an unknown method or packing.
    fn integer_packing(&self) -> Result<IntegerPacking, String> {
        let method = self.method();
        if matches!(method, "" | "gptq" | "awq") {
            let format = self.quantization("checkpoint_format");
            return match format.as_str().unwrap_or("gptq") {
                _ if method == "awq" => Ok(IntegerPacking::Awq),
                "gptq" => Ok(IntegerPacking::Gptq),
                "gptq_v2" => Ok(IntegerPacking::GptqV2),
                other => Err(format!(
                    "Its 'checkpoint_format' is {other}; use a checkpoint in gptq or gptq_v2."
                )),
            };
        }
        if !method.ends_with("auto-round") {
            return Err(format!(
                "Its 'quant_method' is {method}; use a checkpoint of GPTQ, AWQ or AutoRound."
            ));
        }
        // Files before 'packing_format' name the kernel as 'backend'. The format without a suffix
        // is AutoRound's own, which stores zero points unchanged.
        let field = ["packing_format", "backend"]
            .into_iter()
            .find_map(|field| Some((field, self.quantization(field).as_str()?)));
        let (field, packing) = field.unwrap_or(("packing_format", "auto"));
        let own = packing.strip_prefix("auto_round").unwrap_or(packing);
        let packing_format = own.trim_start_matches(':').split(':').next();
        match packing_format.unwrap_or_default() {
            "auto" | "gptq" | "auto_gptq" => Ok(IntegerPacking::Gptq),
            "" | "gptqmodel" | "gptqv2" | "gptq_v2" | "exllamav2" | "tritonv2" => {
                Ok(IntegerPacking::GptqV2)
            }
            "awq" | "auto_awq" => Ok(IntegerPacking::Awq),
            _ => Err(format!(
                "Its '{field}' is {packing}; use a checkpoint in auto_round, auto_round:auto_gptq, auto_round:gptqmodel or auto_round:auto_awq."
            )),
        }
    }

    /// compressed-tensors: packed integers, or nvfp4.
    pub(super) fn compressed_tensors(
        &self,
        base: &str,
        name: &str,
        info: &TensorInfo,
    ) -> Result<WeightSource> {
        let refuse = |hint: &str| self.unsupported(name, info, hint);
        let scales = self.required(base, ".weight_scale", name, info)?;
        let mut parts = vec![
            stored_part(PartRole::Weight, info),
            stored_part(PartRole::Scales, scales),
        ];
        let [.., width] = info.shape[..] else {
            return Err(refuse("It must be a matrix; convert the checkpoint again."));
        };
        if info.dtype == Dtype::U8 && scales.dtype == Dtype::F8E4M3 {
            parts.extend(
                self.tensor(base, ".weight_global_scale")
                    .map(|t| stored_part(PartRole::GlobalScale, t)),
            );
            return Ok(WeightSource::new(
                name,
                with_last_dim(&info.shape, width.saturating_mul(2)),
                Encoding::Nvfp4,
                parts,
            ));
        }
        let scale = self.float_scales(scales, name, info)?;
        let (&[n, words], &[scale_rows, groups]) = (&info.shape[..], &scales.shape[..]) else {
            return Err(refuse(
                "Its codes or scales are not 2-D; convert the checkpoint again.",
            ));
        };
        let (bits, group) = self.compressed_group(base).map_err(|hint| refuse(&hint))?;
        let bits = bits.filter(|b| (2..=8).contains(b)).ok_or_else(|| {
            refuse("Its 'num_bits' must be 2 to 8; use a checkpoint with another bit width.")
        })?;
        if info.dtype != Dtype::I32 || scale_rows != n || groups == 0 {
            return Err(refuse(
                "The types or shapes of 'weight_packed' and 'weight_scale' do not match; convert the checkpoint again.",
            ));
        }
        let per_group = group
            .filter(|_| groups > 1)
            .and_then(|g| g.checked_mul(groups));
        let k = per_group
            .or_else(|| words.checked_mul(32).map(|w| w / bits))
            .unwrap_or(0);
        let stream = k.checked_mul(bits).map(|x| x.div_ceil(32)) == Some(words);
        if !stream && k.div_ceil(32 / bits) != words {
            return Err(refuse(
                "Its number of words matches no packing of its columns; convert the checkpoint again.",
            ));
        }
        parts.extend(
            self.tensor(base, ".weight_zero_point")
                .map(|t| stored_part(PartRole::Zeros, t)),
        );
        parts.extend(
            self.tensor(base, ".weight_g_idx")
                .map(|t| stored_part(PartRole::GroupIndex, t)),
        );
        let group = if groups == 1 { k } else { k.div_ceil(groups) };
        Ok(WeightSource::new(
            name,
            vec![n, k],
            Encoding::PackQuantized {
                bits: bits as u8,
                group,
                stream,
                scale,
            },
            parts,
        ))
    }

    /// Bits and group size of a module. compressed-tensors prefers a target that is the module's
    /// name, then a regular expression, then the class of all linear layers.
    ///
    /// # Errors
    /// The hint of a regular expression that is not supported, or of groups that leave the module out.
    fn compressed_group(&self, base: &str) -> Result<(Option<usize>, Option<usize>), String> {
        let groups = self.quantization("config_groups").as_object();
        let groups: Vec<&Value> = groups.into_iter().flat_map(|g| g.values()).collect();
        let mut best = None;
        for group in &groups {
            for target in group["targets"].as_array().into_iter().flatten() {
                let target = target.as_str().unwrap_or_default();
                let rank = target_rank(target, base)?;
                if rank.is_some() && best.is_none_or(|(known, _)| rank < known) {
                    best = Some((rank, *group));
                }
            }
        }
        let chosen = match (best, &groups[..]) {
            (Some((_, group)), _) => &group["weights"],
            (None, [only]) => &only["weights"],
            (None, []) => &Value::Null,
            (None, _) => {
                return Err(
                    "No target of 'config_groups' names this module; convert the checkpoint again."
                        .into(),
                );
            }
        };
        let field = |f: &str| chosen[f].as_u64().and_then(|n| usize::try_from(n).ok());
        Ok((field("num_bits"), field("group_size").filter(|g| *g > 0)))
    }

    pub(super) fn mxfp4_blocks(&self, base: &str, info: &TensorInfo) -> Result<WeightSource> {
        let scales = self
            .tensor(base, "_scales")
            .filter(|s| s.dtype == Dtype::U8 && info.dtype == Dtype::U8);
        match (&info.shape[..], scales) {
            ([lead @ .., n, blocks, 16], Some(scales)) if scales.shape == [lead, &[*n, *blocks]].concat() => {
                let shape = [lead, &[*n, blocks.saturating_mul(32)]].concat();
                let parts = vec![stored_part(PartRole::Weight, info), stored_part(PartRole::Scales, scales)];
                Ok(WeightSource::new(base, shape, Encoding::Mxfp4Blocks, parts))
            }
            _ => Err(self.unsupported(
                base,
                info,
                "MXFP4 needs U8 blocks of 16 bytes with one U8 scale each; convert the checkpoint again.",
            )),
        }
    }

    /// MLX: the shapes define bits × group; the configuration splits it, globally or per module.
    pub(super) fn mlx(&self, base: &str, name: &str, info: &TensorInfo) -> Result<WeightSource> {
        let refuse = |hint: &str| self.unsupported(name, info, hint);
        let scales = self.required(base, ".scales", name, info)?;
        let (Some(&words), Some(&groups)) = (info.shape.last(), scales.shape.last()) else {
            return Err(refuse("It must be a matrix; convert the checkpoint again."));
        };
        let product = words
            .checked_mul(32)
            .and_then(|b| b.checked_div(groups))
            .unwrap_or(0);
        let mut parts = vec![
            stored_part(PartRole::Weight, info),
            stored_part(PartRole::Scales, scales),
        ];
        if scales.dtype == Dtype::U8 {
            let (encoding, bits) = match product {
                128 => (Encoding::MlxMxfp4, 4),
                256 => (Encoding::MlxMxfp8, 8),
                64 => (Encoding::Nvfp4, 4),
                _ => {
                    return Err(refuse(
                        "U8 scales are supported for the modes mxfp4, mxfp8 and nvfp4; convert the model to one of them.",
                    ));
                }
            };
            return Ok(WeightSource::new(
                name,
                with_last_dim(&info.shape, words * 32 / bits),
                encoding,
                parts,
            ));
        }
        let biases = self
            .tensor(base, ".biases")
            .filter(|b| b.dtype == scales.dtype && b.shape == scales.shape);
        let biases = biases.ok_or_else(|| {
            refuse("Its 'biases' tensor is missing or differs from 'scales' in type or shape; convert the model again.")
        })?;
        parts.push(stored_part(PartRole::Biases, biases));
        let scale = self.float_scales(scales, name, info)?;
        let module = self.quantization(base);
        let given = |field: &str| {
            module[field]
                .as_u64()
                .map(|n| n as usize)
                .or_else(|| self.number(field))
        };
        let (bits, group) = mlx_group(product, given("bits"), given("group_size")).ok_or_else(|| {
            refuse("Its words and scales match no bit width of 2, 3, 4, 5, 6 or 8; convert the model again.")
        })?;
        let k = words.checked_mul(32).map_or(0, |b| b / bits);
        if k % group != 0 || groups.checked_mul(group) != Some(k) {
            return Err(refuse(
                "The shapes of its words and scales do not match; convert the model again.",
            ));
        }
        let encoding = Encoding::MlxAffine {
            bits: bits as u8,
            group,
            scale,
        };
        Ok(WeightSource::new(
            name,
            with_last_dim(&info.shape, k),
            encoding,
            parts,
        ))
    }

    /// FP8 with one scale per block, per row or for the whole tensor.
    pub(super) fn fp8(&self, base: &str, name: &str, info: &TensorInfo) -> Result<WeightSource> {
        let refuse = |hint: &str| self.unsupported(name, info, hint);
        let inverse = self.tensor(base, ".weight_scale_inv");
        // DeepSeek's files multiply by a tensor of that name, GPTQModel's divide by it.
        let divide = inverse.is_some() && self.quantization("weight_scale_semantics") == "inverse";
        let scales = inverse.or_else(|| self.tensor(base, ".weight_scale"));
        let scales = scales.ok_or_else(|| {
            refuse("It has neither 'weight_scale' nor 'weight_scale_inv'; use a checkpoint with its scales, or one in BF16.")
        })?;
        let scale = self.float_scales(scales, name, info)?;
        let &[n, k] = &info.shape[..] else {
            return Err(refuse("It must be a matrix; convert the checkpoint again."));
        };
        let block = self
            .quantization("weight_block_size")
            .as_array()
            .and_then(|b| {
                let side = |i: usize| {
                    b.get(i)
                        .and_then(Value::as_u64)
                        .and_then(|x| usize::try_from(x).ok())
                };
                Some((side(0).filter(|s| *s > 0)?, side(1).filter(|s| *s > 0)?))
            });
        let grid =
            |(rows, cols): (usize, usize)| [n.div_ceil(rows.max(1)), k.div_ceil(cols.max(1))];
        let mut candidates = [Some((n, k)), Some((1, k)), block, Some((128, 128))]
            .into_iter()
            .flatten();
        // A vector has no grid, so its length decides: one scale for the tensor, or one per row.
        let block = candidates
            .clone()
            .find(|b| scales.shape == grid(*b))
            .or_else(|| {
                candidates.find(|b| {
                    let count = grid(*b).into_iter().product::<usize>() as u64;
                    is_vector(&scales.shape) && count == scales.elements()
                })
            });
        let block = block.ok_or_else(|| {
            refuse("Its number of scales matches neither blocks nor rows nor the tensor; convert it again.")
        })?;
        let parts = vec![
            stored_part(PartRole::Weight, info),
            stored_part(PartRole::Scales, scales),
        ];
        Ok(WeightSource::new(
            name,
            vec![n, k],
            Encoding::Fp8 {
                block,
                divide,
                scale,
            },
            parts,
        ))
    }

    /// Signed bytes: bitsandbytes with SCB, compressed-tensors with weight_scale.
    pub(super) fn int8(&self, base: &str, name: &str, info: &TensorInfo) -> Result<WeightSource> {
        let &[n, k] = &info.shape[..] else {
            return Err(self.unsupported(
                name,
                info,
                "It must be a matrix; convert the checkpoint again.",
            ));
        };
        if let Some(scb) = self
            .tensor(base, ".SCB")
            .filter(|s| s.dtype == Dtype::F32 && s.elements() == n as u64)
        {
            let parts = vec![
                stored_part(PartRole::Weight, info),
                stored_part(PartRole::Scales, scb),
            ];
            return Ok(WeightSource::new(name, vec![n, k], Encoding::Bnb8, parts));
        }
        let scales = self
            .tensor(base, ".weight_scale")
            .filter(|s| s.elements() == 1 || s.elements() == n as u64 && is_vector(&s.shape));
        match scales.and_then(|s| Some((s, float_type(s.dtype)?))) {
            Some((scales, scale)) if self.tensor(base, ".weight_zero_point").is_none() => {
                let parts = vec![stored_part(PartRole::Weight, info), stored_part(PartRole::Scales, scales)];
                Ok(WeightSource::new(name, vec![n, k], Encoding::Int8 { scale }, parts))
            }
            _ => Err(self.unsupported(
                name,
                info,
                "I8 needs 'SCB' or a symmetric 'weight_scale' per row or tensor; use such a checkpoint.",
            )),
        }
    }

    /// NVFP4 of ModelOpt: `weight_scale` per 16 elements, times `weight_scale_2`. `None` if the
    /// scales are of another encoding.
    pub(super) fn modelopt_nvfp4(
        &self,
        base: &str,
        name: &str,
        info: &TensorInfo,
    ) -> Option<Result<WeightSource>> {
        let scales = self.tensor(base, ".weight_scale")?;
        let factor = self.tensor(base, ".weight_scale_2")?;
        if scales.dtype != Dtype::F8E4M3 {
            return None;
        }
        let [lead @ .., width] = &info.shape[..] else {
            return None;
        };
        let is_per_16 = scales.shape == [lead, &[width / 8]].concat();
        if !is_per_16 || factor.dtype != Dtype::F32 || factor.elements() != 1 {
            let hint = "NVFP4 needs an F8_E4M3 'weight_scale' per 16 elements and one F32 'weight_scale_2'; convert the checkpoint again.";
            return Some(Err(self.unsupported(name, info, hint)));
        }
        let parts = vec![
            stored_part(PartRole::Weight, info),
            stored_part(PartRole::Scales, scales),
            stored_part(PartRole::GlobalFactor, factor),
        ];
        Some(Ok(WeightSource::new(
            name,
            with_last_dim(&info.shape, width.saturating_mul(2)),
            Encoding::Nvfp4,
            parts,
        )))
    }

    /// Unsigned bytes of BitNet.
    pub(super) fn bitnet(&self, base: &str, name: &str, info: &TensorInfo) -> Result<WeightSource> {
        let refuse = |hint: &str| self.unsupported(name, info, hint);
        let scales = self
            .tensor(base, ".weight_scale")
            .filter(|s| s.elements() == 1);
        let (Some(scales), "bitnet", &[quarter, k]) = (scales, self.method(), &info.shape[..])
        else {
            return Err(refuse(
                "U8 is supported for bitsandbytes nf4 or fp4 and for packed BitNet; use such a checkpoint.",
            ));
        };
        let scale = float_type(scales.dtype).ok_or_else(|| {
            refuse("Its scale must be F32, F16 or BF16; convert the checkpoint again.")
        })?;
        let divide = self.quantization("linear_class") != "autobitlinear";
        let parts = vec![
            stored_part(PartRole::Weight, info),
            stored_part(PartRole::Scales, scales),
        ];
        Ok(WeightSource::new(
            name,
            vec![quarter.saturating_mul(4), k],
            Encoding::BitNet { divide, scale },
            parts,
        ))
    }

    /// 4 bits of bitsandbytes; `None` if there is no description of them. The codes are bytes,
    /// which `bnb_4bit_quant_storage` may label as floats.
    pub(super) fn bnb4(&self, name: &str, info: &TensorInfo) -> Option<Result<WeightSource>> {
        let state = ["nf4", "fp4"]
            .iter()
            .find_map(|t| self.tensor(name, &format!("{QUANT_STATE}{t}")))?;
        let codes = TensorInfo {
            dtype: Dtype::U8,
            shape: vec![usize::try_from(info.bytes()).unwrap_or(usize::MAX), 1],
            ..info.clone()
        };
        Some(self.bnb4_codes(name, &codes, state))
    }

    fn bnb4_codes(
        &self,
        name: &str,
        info: &TensorInfo,
        state: &TensorInfo,
    ) -> Result<WeightSource> {
        let refuse = |hint: &str| self.unsupported(name, info, hint);
        let json = self
            .metadata_bytes
            .get(&state.name)
            .and_then(|b| serde_json::from_slice::<Value>(b).ok());
        let json = json.ok_or_else(|| {
            refuse("Its 'quant_state' is missing or not valid JSON; download the checkpoint again.")
        })?;
        let number = |f: &str| json[f].as_u64().and_then(|n| usize::try_from(n).ok());
        let shape: Option<Vec<usize>> = json["shape"].as_array().map(|s| {
            s.iter()
                .filter_map(|d| d.as_u64().map(|d| d as usize))
                .collect()
        });
        let shape = shape.filter(|s| !s.is_empty()).ok_or_else(|| {
            refuse("Its 'quant_state' has no 'shape'; download the checkpoint again.")
        })?;
        let absmax = self.tensor(name, ".absmax");
        let map = self.tensor(name, ".quant_map");

        let (Some(absmax), Some(map)) = (absmax, map) else {
            return Err(refuse(
                "Its 'absmax' or 'quant_map' tensor is missing; download the checkpoint again.",
            ));
        };
        let mut parts = vec![
            stored_part(PartRole::Weight, info),
            stored_part(PartRole::Scales, absmax),
            stored_part(PartRole::QuantMap, map),
        ];
        let nested_block = match (
            self.tensor(name, ".nested_absmax"),
            self.tensor(name, ".nested_quant_map"),
        ) {
            (Some(scales), Some(map)) => {
                parts.extend([
                    stored_part(PartRole::NestedScales, scales),
                    stored_part(PartRole::NestedMap, map),
                ]);
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
        Ok(WeightSource::new(
            name,
            shape,
            Encoding::Bnb4 {
                block,
                nested_block,
                nested_offset,
                dtype,
            },
            parts,
        ))
    }
}

/// The integer packings of `qweight`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IntegerPacking {
    /// Codes along inputs; zero points are stored minus one.
    Gptq,
    /// Codes along inputs; zero points are stored unchanged.
    GptqV2,
    /// Codes along outputs, interleaved.
    Awq,
}

/// How closely a target of compressed-tensors names a module, the closest first; `None` if it does
/// not.
///
/// # Errors
/// The hint of a regular expression that is not supported.
fn target_rank(target: &str, module: &str) -> Result<Option<u8>, String> {
    if target == module {
        return Ok(Some(0));
    }
    if let Some(regex) = target.strip_prefix("re:") {
        let matches = text::regex_matches_start(regex, module).map_err(|_| {
            format!("The target '{target}' of 'config_groups' is not supported; replace it by module names.")
        })?;
        return Ok(matches.then_some(1));
    }
    let end = module.strip_suffix(target);
    if end.is_some_and(|outer| outer.ends_with('.')) {
        return Ok(Some(2));
    }
    Ok((target == "Linear").then_some(3))
}

/// Bits and group size of an MLX weight with bits × group = `product`, closest to the
/// configuration.
fn mlx_group(product: usize, bits: Option<usize>, group: Option<usize>) -> Option<(usize, usize)> {
    let fits = |bits: usize, group: usize| {
        (matches!(bits, 2..=6 | 8) && group > 0 && bits * group == product).then_some((bits, group))
    };
    let by_both = bits.zip(group).and_then(|(b, g)| fits(b, g));
    let by_group = || group.filter(|g| *g > 0).and_then(|g| fits(product / g, g));

    by_both
        .or_else(by_group)
        .or_else(|| bits.filter(|b| *b > 0).and_then(|b| fits(b, product / b)))
        .or_else(|| [64, 32, 128].iter().find_map(|g| fits(product / g, *g)))
}

/// Whether at most one dimension has several elements.
fn is_vector(shape: &[usize]) -> bool {
    shape.iter().filter(|size| **size != 1).count() <= 1
}

/// Replaces the last dimension of a shape.
fn with_last_dim(shape: &[usize], cols: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    if let Some(last) = shape.last_mut() {
        *last = cols;
    }
    shape
}
