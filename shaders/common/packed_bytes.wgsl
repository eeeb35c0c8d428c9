// Packing of floats to signed bytes.

// Added to a float below 2^22, it leaves the nearest integer in the lowest bits: conversions are slow.
const WHOLE: f32 = 12582912.0;

// The lowest bytes of four words.
fn bytes_of(v: vec4<u32>) -> u32 {
    let b = v & vec4<u32>(255u);
    return (b.x | (b.y << 8u)) | ((b.z << 16u) | (b.w << 24u));
}
