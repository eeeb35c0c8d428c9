//! Elements of tensors as f32.

use jerboa::format::detect::float_type;
use jerboa::format::fp8::{e4m3, e8m0};
use jerboa::format::{Dtype, Float};

/// Element types that [`as_f32`] reads, for messages.
pub const READABLE: &str = "F64, F32, F16, BF16, integers, BOOL and the types of 8 bits";

/// A format of 8 bits of the "FNUZ" kind: finite, with one zero, and one NaN in place of -0.
struct FiniteFloat {
    mantissa_bits: u32,
    bias: i32,
}

impl FiniteFloat {
    const E4M3: Self = Self {
        mantissa_bits: 3,
        bias: 8,
    };
    const E5M2: Self = Self {
        mantissa_bits: 2,
        bias: 16,
    };

    fn get(&self, byte: u8) -> f32 {
        if byte == 0x80 {
            return f32::NAN;
        }
        let fraction = f32::from(byte & ((1 << self.mantissa_bits) - 1));
        let exponent = i32::from((byte & 0x7f) >> self.mantissa_bits);
        let one = (1u32 << self.mantissa_bits) as f32;
        let value = match exponent {
            0 => fraction / one * 2f32.powi(1 - self.bias),
            _ => (1.0 + fraction / one) * 2f32.powi(exponent - self.bias),
        };
        if byte & 0x80 == 0 { value } else { -value }
    }
}

/// The function that reads a type of one byte.
fn byte_reader(dtype: Dtype) -> Option<fn(u8) -> f32> {
    Some(match dtype {
        Dtype::Bool => |byte| f32::from(u8::from(byte != 0)),
        Dtype::U8 => f32::from,
        Dtype::I8 => |byte| f32::from(byte as i8),
        Dtype::F8E4M3 => e4m3,
        // The upper byte of an f16.
        Dtype::F8E5M2 => |byte| Float::F16.get(&[0, byte], 0).unwrap_or(f32::NAN),
        Dtype::F8E4M3Fnuz => |byte| FiniteFloat::E4M3.get(byte),
        Dtype::F8E5M2Fnuz => |byte| FiniteFloat::E5M2.get(byte),
        Dtype::F8E8M0 => |byte| match byte {
            0xff => f32::NAN,
            _ => e8m0(byte),
        },
        _ => return None,
    })
}

/// Little-endian numbers of `N` bytes.
fn numbers<const N: usize>(bytes: &[u8], read: fn([u8; N]) -> f32) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|own| read(*own)).collect()
}

/// Reads the elements of a tensor, rounded to f32; `None` for types that are not supported: complex
/// numbers and types of 4 and 6 bits.
pub fn as_f32(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f32>> {
    if let Some(float) = float_type(dtype) {
        let count = bytes.len() / float.bytes();
        return Some((0..count).filter_map(|at| float.get(bytes, at)).collect());
    }
    if let Some(read) = byte_reader(dtype) {
        return Some(bytes.iter().map(|byte| read(*byte)).collect());
    }
    Some(match dtype {
        Dtype::F64 => numbers(bytes, |own| f64::from_le_bytes(own) as f32),
        Dtype::I16 => numbers(bytes, |own| i16::from_le_bytes(own).into()),
        Dtype::U16 => numbers(bytes, |own| u16::from_le_bytes(own).into()),
        Dtype::I32 => numbers(bytes, |own| i32::from_le_bytes(own) as f32),
        Dtype::U32 => numbers(bytes, |own| u32::from_le_bytes(own) as f32),
        Dtype::I64 => numbers(bytes, |own| i64::from_le_bytes(own) as f32),
        Dtype::U64 => numbers(bytes, |own| u64::from_le_bytes(own) as f32),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bits, with one pattern for all NaNs.
    fn bits(value: f32) -> u32 {
        if value.is_nan() { 0 } else { value.to_bits() }
    }

    #[test]
    fn types_of_eight_bits() {
        let all: Vec<u8> = (0..=255).collect();
        let found = as_f32(Dtype::F8E4M3, &all).expect("read");
        for (byte, found) in all.iter().zip(found) {
            assert_eq!(bits(found), bits(e4m3(*byte)), "E4M3 {byte:#x}");
        }
        // FNUZ formats have one more in their bias.
        for (dtype, finite, reserved) in [
            (Dtype::F8E4M3, Dtype::F8E4M3Fnuz, 0x7f),
            (Dtype::F8E5M2, Dtype::F8E5M2Fnuz, 0x7c),
        ] {
            let read = |dtype| as_f32(dtype, &all).expect("read");
            let both = read(dtype).into_iter().zip(read(finite));
            for (byte, (value, half)) in all.iter().zip(both) {
                if byte & 0x7f < reserved && *byte != 0x80 {
                    assert_eq!(bits(half), bits(value / 2.0), "{finite} {byte:#x}");
                }
            }
        }
        // The smallest, the largest and special values, by the tables of the OCP's 8-bit formats and of
        // ml_dtypes.
        for (dtype, byte, expected) in [
            (Dtype::F8E5M2, 0x01, 2f32.powi(-16)),
            (Dtype::F8E5M2, 0x04, 2f32.powi(-14)),
            (Dtype::F8E5M2, 0xfb, -57344.0),
            (Dtype::F8E5M2, 0x7c, f32::INFINITY),
            (Dtype::F8E5M2, 0xfc, f32::NEG_INFINITY),
            (Dtype::F8E5M2, 0x7e, f32::NAN),
            (Dtype::F8E4M3Fnuz, 0x01, 2f32.powi(-10)),
            (Dtype::F8E4M3Fnuz, 0xff, -240.0),
            (Dtype::F8E4M3Fnuz, 0x80, f32::NAN),
            (Dtype::F8E5M2Fnuz, 0x01, 2f32.powi(-17)),
            (Dtype::F8E5M2Fnuz, 0x7f, 57344.0),
            (Dtype::F8E5M2Fnuz, 0x80, f32::NAN),
            (Dtype::F8E8M0, 0x00, 2f32.powi(-127)),
            (Dtype::F8E8M0, 0x80, 2.0),
            (Dtype::F8E8M0, 0xff, f32::NAN),
            (Dtype::I8, 0x80, -128.0),
            (Dtype::U8, 0x80, 128.0),
            (Dtype::Bool, 0x02, 1.0),
        ] {
            let found = as_f32(dtype, &[byte]).expect("read")[0];
            assert_eq!(bits(found), bits(expected), "{dtype} {byte:#x}: {found}");
        }
    }

    #[test]
    fn wide_types_are_rounded() {
        let of = |dtype, bytes: &[u8]| as_f32(dtype, bytes).expect("read");
        let twice = |bytes: &[u8]| [bytes, bytes].concat();
        for (dtype, bytes, expected) in [
            (Dtype::F64, (-0.1f64).to_le_bytes().to_vec(), -0.1),
            (Dtype::I16, (-300i16).to_le_bytes().to_vec(), -300.0),
            (Dtype::U16, 60_000u16.to_le_bytes().to_vec(), 60_000.0),
            (
                Dtype::I32,
                (-16_777_217i32).to_le_bytes().to_vec(),
                -16_777_216.0,
            ),
            (Dtype::U32, u32::MAX.to_le_bytes().to_vec(), 4_294_967_296.0),
            (
                Dtype::I64,
                i64::MIN.to_le_bytes().to_vec(),
                -(2f32.powi(63)),
            ),
            (Dtype::U64, u64::MAX.to_le_bytes().to_vec(), 2f32.powi(64)),
        ] {
            assert_eq!(of(dtype, &twice(&bytes)), [expected; 2], "{dtype}");
        }
    }

    #[test]
    fn other_types_are_not_read() {
        for dtype in [Dtype::C64, Dtype::F4, Dtype::F6E2M3, Dtype::F6E3M2] {
            assert_eq!(as_f32(dtype, &[0; 8]), None, "{dtype}");
        }
        let readable = Dtype::all().filter(|dtype| as_f32(*dtype, &[]).is_some());
        assert_eq!(readable.count(), 18);
    }
}
