//! Reading and writing of WAV files: PCM of 8 to 32 bits and float samples. Rejects other encodings
//! by name.

use super::AudioClip;
use crate::{Error, Result};

/// Sample format.
#[derive(Clone, Copy)]
struct WavFormat {
    /// Format tag: 1 PCM, 3 float.
    tag: u16,
    channels: usize,
    rate: u32,
    bits: u16,
}

impl WavFormat {
    fn read(chunk: &[u8]) -> Result<Self, String> {
        if chunk.len() < 16 {
            return Err("its 'fmt ' chunk is too short".into());
        }
        let word = |at: usize| u16::from_le_bytes([chunk[at], chunk[at + 1]]);
        let rate = u32::from_le_bytes([chunk[4], chunk[5], chunk[6], chunk[7]]);
        let mut tag = word(0);
        // The extensible format keeps the real tag in the first bytes of a GUID.
        if tag == 0xfffe && chunk.len() >= 26 {
            tag = word(24);
        }
        let format = Self {
            tag,
            channels: usize::from(word(2)),
            rate,
            bits: word(14),
        };
        match (tag, format.bits) {
            (1, 8 | 16 | 24 | 32) | (3, 32 | 64) => {}
            (1 | 3, bits) => return Err(format!("samples of {bits} bits are not supported")),
            (tag, _) => {
                return Err(format!(
                    "the encoding {} is not supported",
                    encoding_name(tag)
                ));
            }
        }
        if format.channels == 0 || !(100..=1_000_000).contains(&rate) {
            return Err(format!(
                "{} channels at {rate} Hz are not valid",
                format.channels
            ));
        }
        Ok(format)
    }

    /// Converts one sample from its bytes.
    fn sample(self, b: &[u8]) -> f32 {
        match (self.tag, self.bits) {
            (3, 32) => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
            (3, _) => f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]) as f32,
            (_, 8) => (f32::from(b[0]) - 128.0) / 128.0,
            (_, 16) => f32::from(i16::from_le_bytes([b[0], b[1]])) / 32_768.0,
            (_, 24) => (i32::from_le_bytes([0, b[0], b[1], b[2]]) >> 8) as f32 / 8_388_608.0,
            _ => i32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f32 / 2_147_483_648.0,
        }
    }
}

fn encoding_name(tag: u16) -> String {
    match tag {
        2 => "ADPCM".into(),
        6 => "A-law".into(),
        7 => "µ-law".into(),
        0x55 => "MP3".into(),
        _ => format!("number {tag}"),
    }
}

/// Reads a WAV file and averages its channels. Returns the available samples of a truncated file.
///
/// # Errors
/// `Request` for files that are not WAV, unsupported encodings and files without samples.
pub fn read(bytes: &[u8], name: &str) -> Result<AudioClip> {
    let clip = parse(bytes).map_err(|reason| Error::Request {
        parameter: name.into(),
        reason: format!("{reason}. Use a WAV file of PCM or float samples."),
    })?;
    super::check_samples(&clip.samples, name)?;
    Ok(clip)
}

fn parse(bytes: &[u8]) -> Result<AudioClip, String> {
    if bytes.is_empty() {
        return Err("the file is empty".into());
    }
    if bytes.len() < 12
        || (&bytes[..4] != b"RIFF" && &bytes[..4] != b"RF64")
        || &bytes[8..12] != b"WAVE"
    {
        return Err("it is not a WAV file".into());
    }
    let mut at = 12;
    let mut format = None;

    while at + 8 <= bytes.len() {
        let size = u32::from_le_bytes([bytes[at + 4], bytes[at + 5], bytes[at + 6], bytes[at + 7]])
            as usize;
        let body = &bytes[at + 8..(at + 8).saturating_add(size).min(bytes.len())];
        match &bytes[at..at + 4] {
            b"fmt " => format = Some(WavFormat::read(body)?),
            b"data" => {
                return format
                    .map(|f| samples(f, body))
                    .ok_or("its 'data' chunk comes before its 'fmt ' chunk".into());
            }
            _ => {}
        }
        // Chunks start at even offsets.
        at = (at + 8).saturating_add(size).saturating_add(size & 1);
    }
    Err("it has no 'data' chunk; it may be truncated".into())
}

fn samples(format: WavFormat, body: &[u8]) -> AudioClip {
    let bytes = usize::from(format.bits) / 8;
    let frames = body.chunks_exact(bytes * format.channels);

    AudioClip {
        rate: format.rate,
        samples: frames
            .map(|frame: &[u8]| {
                frame
                    .chunks_exact(bytes)
                    .map(|b| format.sample(b))
                    .sum::<f32>()
                    / format.channels as f32
            })
            .collect(),
    }
}

/// Encodes a mono 16-bit WAV file. Clamps samples to [-1, 1].
pub fn write(clip: &AudioClip) -> Vec<u8> {
    let size = clip.samples.len() as u32 * 2;
    let mut out = Vec::with_capacity(44 + size as usize);
    out.extend(b"RIFF");
    out.extend((36 + size).to_le_bytes());
    out.extend(b"WAVEfmt ");
    out.extend(16u32.to_le_bytes());
    for word in [1u16, 1] {
        out.extend(word.to_le_bytes());
    }
    out.extend(clip.rate.to_le_bytes());
    out.extend((clip.rate * 2).to_le_bytes());
    for word in [2u16, 16] {
        out.extend(word.to_le_bytes());
    }
    out.extend(b"data");
    out.extend(size.to_le_bytes());
    out.extend(clip.samples.iter().flat_map(|s| pcm16(*s).to_le_bytes()));
    out
}

/// Converts a sample to 16 bits.
pub fn pcm16(sample: f32) -> i16 {
    (sample.clamp(-1.0, 1.0) * 32_767.0).round() as i16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(
        tag: u16,
        channels: u16,
        rate: u32,
        bits: u16,
        data: &[u8],
        extensible: bool,
    ) -> Vec<u8> {
        let mut fmt = Vec::new();
        fmt.extend(if extensible { 0xfffe } else { tag }.to_le_bytes());
        fmt.extend(channels.to_le_bytes());
        fmt.extend(rate.to_le_bytes());
        fmt.extend((rate * u32::from(channels) * u32::from(bits) / 8).to_le_bytes());
        fmt.extend((channels * bits / 8).to_le_bytes());
        fmt.extend(bits.to_le_bytes());
        if extensible {
            fmt.extend([22, 0, bits as u8, 0, 0, 0, 0, 0]);
            fmt.extend(tag.to_le_bytes());
            fmt.extend([0; 14]);
        }
        let mut out = b"RIFF....WAVE".to_vec();
        for (name, body) in [(b"LIST", &b"odd"[..]), (b"fmt ", &fmt), (b"data", data)] {
            out.extend(name);
            out.extend((body.len() as u32).to_le_bytes());
            out.extend(body);
            out.resize(out.len().next_multiple_of(2), 0);
        }
        out
    }

    #[test]
    fn every_width_and_two_channels() {
        let read = |tag, bits, data: &[u8]| {
            read(&file(tag, 1, 8000, bits, data, false), "a.wav")
                .unwrap()
                .samples
        };
        assert_eq!(read(1, 8, &[0, 128, 192]), [-1.0, 0.0, 0.5]);
        assert_eq!(read(1, 16, &[0, 0x80, 0, 0x40]), [-1.0, 0.5]);
        assert_eq!(read(1, 24, &[0, 0, 0x80, 0, 0, 0x40]), [-1.0, 0.5]);
        assert_eq!(read(1, 32, &[0, 0, 0, 0x80, 0, 0, 0, 0x40]), [-1.0, 0.5]);
        assert_eq!(read(3, 32, &0.25f32.to_le_bytes()), [0.25]);
        assert_eq!(read(3, 64, &(-0.75f64).to_le_bytes()), [-0.75]);
        let stereo = super::read(&file(1, 2, 44_100, 16, &[0, 0x40, 0, 0], true), "a.wav").unwrap();
        assert_eq!(
            stereo,
            AudioClip {
                rate: 44_100,
                samples: vec![0.25]
            }
        );
    }

    #[test]
    fn written_files_read_back() {
        let clip = AudioClip {
            rate: 22_050,
            samples: vec![0.0, 1.0, -1.0, 3.0, 0.5],
        };
        let back = read(&write(&clip), "a.wav").unwrap();
        assert_eq!(back.rate, 22_050);
        for (found, expected) in back.samples.iter().zip([0.0, 1.0, -1.0, 1.0, 0.5]) {
            assert!((found - expected).abs() < 1e-4);
        }
    }

    #[test]
    fn broken_files_have_messages() {
        let message = |bytes: &[u8]| read(bytes, "a.wav").unwrap_err().to_string();
        assert!(message(b"").contains("empty"));
        assert!(message(b"ID3 something that is no wave").contains("not a WAV"));
        assert!(message(&file(7, 1, 8000, 8, &[0], false)).contains("µ-law"));
        assert!(message(&file(1, 1, 8000, 12, &[0, 0], false)).contains("12 bits"));
        assert!(message(&file(1, 0, 8000, 16, &[0, 0], false)).contains("0 channels"));
        assert!(message(&file(1, 1, 8000, 16, &[], false)).contains("no samples"));
        assert!(
            message(&file(3, 1, 8000, 32, &f32::NAN.to_le_bytes(), false))
                .contains("NaN or infinite")
        );
        let whole = file(1, 1, 8000, 16, &[1, 0, 2, 0, 3, 0], false);
        assert!(message(&whole[..48]).contains("no 'data' chunk; it may be truncated"));
        assert_eq!(
            read(&whole[..whole.len() - 2], "a.wav")
                .unwrap()
                .samples
                .len(),
            2
        );
        // No prefix of a file and no flipped byte of its head may panic.
        for end in 0..whole.len() {
            let _ = read(&whole[..end], "a.wav");
            let mut flipped = whole.clone();
            flipped[end] ^= 0xff;
            let _ = read(&flipped, "a.wav");
        }
    }
}
