//! Finite scalar quantization of NanoCodec: codes to values and back. The decoder network is in
//! arch/nanocodec.rs.

/// Context frames before a chunk, for kernels up to 11 and dilations up to 5 after upsampling by 7.
/// With them, a chunk has the same samples as in a single pass.
pub const CONTEXT_FRAMES: usize = 32;

/// Dequantizes one code per group to values `[groups * levels]`, group by group.
pub fn dequantize(codes: &[u32], levels: &[u32]) -> Vec<f32> {
    let mut out = Vec::with_capacity(codes.len() * levels.len());
    for code in codes {
        let mut rest = *code;
        for level in levels {
            let half = (level / 2) as f32;
            out.push(((rest % level) as f32 - half) / half);
            rest /= level;
        }
    }
    out
}

/// Quantizes a group's values to a code, as an encoder does.
pub fn quantize(values: &[f32], levels: &[u32]) -> u32 {
    let mut code = 0;
    let mut base = 1;

    for (value, level) in values.iter().zip(levels) {
        let reach = (level - 1) as f32 / 2.0 * (1.0 - 1e-3);
        let offset = if level % 2 == 0 { 0.5 } else { 0.0 };
        let bounded = reach * (value + (offset / reach).tan()).tanh() - offset;
        code += (bounded.round_ties_even() as i32 + (level / 2) as i32).clamp(0, *level as i32 - 1)
            as u32
            * base;
        base *= level;
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEVELS: [u32; 4] = [9, 8, 8, 7];

    #[test]
    fn digits_of_a_code() {
        assert_eq!(dequantize(&[0], &LEVELS), [-1.0, -1.0, -1.0, -1.0]);
        assert_eq!(dequantize(&[4031], &LEVELS), [1.0, 0.75, 0.75, 1.0]);
        assert_eq!(
            dequantize(&[9 + 1, 0], &LEVELS)[..5],
            [-0.75, -0.75, -1.0, -1.0, -1.0]
        );
        for value in [0, 1, 575, 576, 2016, 4031] {
            // A code's values quantize back to it unless they reach the bound.
            let near: Vec<f32> = dequantize(&[value], &LEVELS)
                .iter()
                .zip(LEVELS)
                .map(|(v, l)| {
                    let half = (l / 2) as f32;
                    let reach = (l - 1) as f32 / 2.0 * (1.0 - 1e-3);
                    let offset = if l % 2 == 0 { 0.5 } else { 0.0 };
                    (((v * half + offset) / reach).clamp(-0.9999, 0.9999)).atanh()
                        - (offset / reach).tan()
                })
                .collect();
            assert_eq!(quantize(&near, &LEVELS), value);
        }
    }
}
