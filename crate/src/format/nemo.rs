//! Reads NVIDIA NeMo checkpoints: a tar archive with a YAML configuration and PyTorch weights (a
//! zip of stored entries with a pickle of tensor descriptions). The pickle is never executed: only
//! the operations of a state dict are interpreted, to find the byte ranges of tensors. Reads
//! headers, not weights.

use super::{Checkpoint, CheckpointFile, Dtype, TensorInfo};
use crate::util::map::SortedMap;
use crate::{Error, Result};
use std::ops::Range;
use std::rc::Rc;

/// Bytes of a tar block and of a tar header.
pub const TAR_BLOCK_BYTES: u64 = 512;
/// Bytes at the end of a zip that contain its end records.
pub const ZIP_TAIL_BYTES: u64 = 22 + 20 + 56;
/// PyTorch aligns entry data to this many bytes.
const DATA_ALIGNMENT: u64 = 64;
/// Maximum nesting of tuples and dicts; a state dict has four levels.
const MAX_NESTING: u8 = 16;

fn malformed(file: &str, reason: &str) -> Error {
    Error::Malformed {
        file: file.into(),
        format: "NeMo",
        reason: reason.into(),
    }
}

fn read_uint(bytes: &[u8], at: usize, count: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(count)?)?;
    Some(
        bytes
            .iter()
            .rev()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
    )
}

/// Parses a tar header: entry name and size in bytes; `None` at the end of the archive.
///
/// # Errors
/// `Malformed` for anything else, such as a compressed archive.
pub fn tar_entry(file: &str, header: &[u8]) -> Result<Option<(String, u64)>> {
    if header.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let field = |range: Range<usize>| header.get(range).unwrap_or_default();
    if field(257..262) != b"ustar" {
        let packed = header.starts_with(&[0x1f, 0x8b]);
        let hint = "it is compressed and must be repacked as an uncompressed tar archive";
        return Err(malformed(
            file,
            if packed {
                hint
            } else {
                "it is not a tar archive"
            },
        ));
    }
    let name = field(0..100)
        .split(|byte| *byte == 0)
        .next()
        .unwrap_or_default();
    let octal = |sum: Option<u64>, byte: &u8| Some(sum?.checked_mul(8)? + u64::from(byte - b'0'));
    let digits = field(124..136)
        .iter()
        .filter(|byte| (b'0'..=b'7').contains(byte));
    let size = digits.fold(Some(0), octal).filter(|size| *size < 1 << 50);
    let size = size.ok_or_else(|| malformed(file, "the size of a tar entry is not a number"))?;
    let name = String::from_utf8_lossy(name)
        .trim_start_matches("./")
        .to_string();
    // Entries that are not regular files get an empty name.
    Ok(Some((
        if matches!(field(156..157), b"0" | b"\0") {
            name
        } else {
            String::new()
        },
        size,
    )))
}

/// The byte range of a zip's central directory, from its last bytes and its size.
pub fn zip_directory(tail: &[u8], size: u64) -> Option<Range<u64>> {
    let end = tail.len().checked_sub(22)?;
    if read_uint(tail, end, 4)? != 0x0605_4b50 {
        return None;
    }
    let mut length = read_uint(tail, end + 12, 4)?;
    let mut begin = read_uint(tail, end + 16, 4)?;

    // PyTorch also writes the zip64 record.
    if let Some(wide) = end
        .checked_sub(76)
        .filter(|at| read_uint(tail, *at, 4) == Some(0x0606_4b50))
    {
        (length, begin) = (
            read_uint(tail, wide + 40, 8)?,
            read_uint(tail, wide + 48, 8)?,
        );
    }
    let range = begin..begin.checked_add(length)?;
    (range.end <= size).then_some(range)
}

/// The data ranges of a zip's entries by name, from its central directory, which starts at `begin`.
/// Entries must be uncompressed, as PyTorch writes them.
pub fn zip_entries(mut directory: &[u8], begin: u64) -> Option<SortedMap<String, Range<u64>>> {
    let mut found: Vec<(String, u64, u64)> = Vec::new();
    while !directory.is_empty() {
        let field = |at, count| read_uint(directory, at, count);
        if field(0, 4)? != 0x0201_4b50 || field(10, 2)? != 0 {
            return None;
        }
        let name = field(28, 2)? as usize;
        let extra = field(30, 2)? as usize;
        let comment = field(32, 2)? as usize;

        let mut size = field(24, 4)?;
        let mut header = field(42, 4)?;

        let text = String::from_utf8(directory.get(46..46 + name)?.to_vec()).ok()?;
        // Values over 32 bits are in the first extra field, in this order.
        let mut at = 46 + name + 4;
        for value in [&mut size, &mut header] {
            if *value == u64::from(u32::MAX) {
                *value = field(at, 8)?;
                // The size is stored twice: uncompressed and compressed.
                at += 16;
            }
        }
        found.push((text, header, size));
        directory = directory.get(46 + name + extra + comment..)?;
    }
    let ends = found
        .iter()
        .skip(1)
        .map(|entry| entry.1)
        .chain([begin])
        .collect::<Vec<_>>();
    let entry = |((name, header, size), next): ((String, u64, u64), u64)| {
        let data = header
            .checked_add(30 + name.len() as u64 + 4)?
            .next_multiple_of(DATA_ALIGNMENT);
        let rest = next.checked_sub(data.checked_add(size)?)?;
        // A data descriptor (checksum and sizes) follows the data.
        matches!(rest, 0 | 16 | 24).then(|| (name, data..data + size))
    };
    found.into_iter().zip(ends).map(entry).collect()
}

/// A tensor of a state dict and its location in a storage.
#[derive(Debug, Clone, PartialEq)]
pub struct StateTensor {
    /// Tensor name.
    pub name: String,
    /// Entry name below `data/`.
    pub storage: Rc<str>,
    /// Element type.
    pub dtype: Dtype,
    /// Offset in the storage, in elements.
    pub offset: u64,
    /// Row-major, outermost dimension first.
    pub shape: Vec<usize>,
}

/// A value on the pickle stack.
#[derive(Clone)]
enum PickleValue {
    Mark,
    /// A value that is not needed.
    Other,
    Int(i64),
    Text(Rc<str>),
    Global(Rc<str>),
    Tuple(Rc<Vec<PickleValue>>, u8),
    Dict(Vec<(PickleValue, PickleValue)>, u8),
    Storage(Rc<str>, Option<Dtype>),
    Tensor(Rc<StateTensor>),
}

impl PickleValue {
    fn depth(&self) -> u8 {
        match self {
            PickleValue::Tuple(_, depth) | PickleValue::Dict(_, depth) => *depth,
            _ => 0,
        }
    }

    fn tuple(items: Vec<PickleValue>) -> Option<PickleValue> {
        let depth = items.iter().map(PickleValue::depth).max().unwrap_or(0) + 1;
        (depth < MAX_NESTING).then(|| PickleValue::Tuple(Rc::new(items), depth))
    }

    fn as_tuple(&self) -> Option<&[PickleValue]> {
        if let PickleValue::Tuple(items, _) = self {
            Some(items)
        } else {
            None
        }
    }

    fn as_usize(&self) -> Option<usize> {
        if let PickleValue::Int(n) = self {
            usize::try_from(*n).ok()
        } else {
            None
        }
    }

    fn as_usizes(&self) -> Option<Vec<usize>> {
        self.as_tuple()?.iter().map(PickleValue::as_usize).collect()
    }

    /// The result of calling a pickled function.
    fn call_result(function: &str, args: &PickleValue) -> Option<PickleValue> {
        let args = args.as_tuple()?;
        match function {
            "collections OrderedDict" => Some(PickleValue::Dict(Vec::new(), 1)),
            "torch._utils _rebuild_parameter" => args.first().cloned(),
            "torch._utils _rebuild_tensor_v2" => {
                Some(PickleValue::tensor(args).unwrap_or(PickleValue::Other))
            }
            _ => Some(PickleValue::Other),
        }
    }

    /// A contiguous tensor.
    fn tensor(args: &[PickleValue]) -> Option<PickleValue> {
        let [
            PickleValue::Storage(storage, Some(dtype)),
            first,
            shape,
            strides,
            ..,
        ] = args
        else {
            return None;
        };
        let shape = shape.as_usizes()?;
        let strides = strides.as_usizes()?;

        let mut expected = 1usize;
        for (size, stride) in shape.iter().zip(&strides).rev() {
            if *size != 1 && *stride != expected {
                return None;
            }
            expected = expected.checked_mul(*size)?;
        }
        let first = first.as_usize()? as u64;
        let tensor = StateTensor {
            name: String::new(),
            storage: storage.clone(),
            dtype: *dtype,
            offset: first,
            shape,
        };
        Some(PickleValue::Tensor(Rc::new(tensor)))
    }
}

/// Extracts the tensors of a pickled state dict.
///
/// `None` for operations that a state dict does not use.
pub fn state_dict(pickle: &[u8]) -> Option<Vec<StateTensor>> {
    let mut machine = PickleReader {
        bytes: pickle,
        stack: Vec::new(),
        memo: SortedMap::new(),
    };
    let PickleValue::Dict(mut items, _) = machine.run()? else {
        return None;
    };
    // Lightning checkpoints nest the state dict under a key.
    let inner = items
        .iter()
        .position(|(key, _)| matches!(key, PickleValue::Text(text) if &**text == "state_dict"));
    if let Some((_, PickleValue::Dict(inside, _))) = inner.map(|at| items.swap_remove(at)) {
        items = inside;
    }

    Some(
        items
            .into_iter()
            .filter_map(
                |(key, value): (PickleValue, PickleValue)| match (key, value) {
                    (PickleValue::Text(name), PickleValue::Tensor(tensor)) => Some(StateTensor {
                        name: name.to_string(),
                        ..(*tensor).clone()
                    }),
                    _ => None,
                },
            )
            .collect(),
    )
}

struct PickleReader<'a> {
    bytes: &'a [u8],
    stack: Vec<PickleValue>,
    memo: SortedMap<u32, PickleValue>,
}

impl<'a> PickleReader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(head)
    }

    fn int(&mut self, count: usize) -> Option<u64> {
        read_uint(self.take(count)?, 0, count)
    }

    fn line(&mut self) -> Option<&'a str> {
        let end = self.bytes.iter().position(|byte| *byte == b'\n')?;
        let line = self.take(end + 1)?;
        std::str::from_utf8(&line[..end]).ok()
    }

    fn text(&mut self, width: usize) -> Option<PickleValue> {
        let count = usize::try_from(self.int(width)?).ok()?;
        Some(PickleValue::Text(
            std::str::from_utf8(self.take(count)?).ok()?.into(),
        ))
    }

    fn pop(&mut self) -> Option<PickleValue> {
        self.stack.pop()
    }

    /// Pops all items above the last mark.
    fn pop_to_mark(&mut self) -> Option<Vec<PickleValue>> {
        let at = self
            .stack
            .iter()
            .rposition(|item| matches!(item, PickleValue::Mark))?;
        let items = self.stack.split_off(at + 1);
        self.stack.pop();
        Some(items)
    }

    fn pop_many(&mut self, count: usize) -> Option<Vec<PickleValue>> {
        Some(self.stack.split_off(self.stack.len().checked_sub(count)?))
    }

    fn memoize(&mut self, key: u32) -> Option<()> {
        // Dicts are filled in place, so the memo does not copy them.
        let item = self.stack.last()?;
        let item = if matches!(item, PickleValue::Dict(..)) {
            PickleValue::Other
        } else {
            item.clone()
        };
        self.memo.insert(key, item);
        Some(())
    }

    /// Adds alternating keys and values to the dict on top of the stack.
    fn extend_dict(&mut self, items: Vec<PickleValue>) -> Option<()> {
        let Some(PickleValue::Dict(dict, depth)) = self.stack.last_mut() else {
            return Some(());
        };
        let mut items = items.into_iter();
        while let (Some(key), Some(value)) = (items.next(), items.next()) {
            *depth = (*depth).max(value.depth() + 1).max(key.depth() + 1);
            if *depth >= MAX_NESTING {
                return None;
            }
            dict.push((key, value));
        }
        Some(())
    }

    fn run(&mut self) -> Option<PickleValue> {
        loop {
            let made = match self.take(1)?[0] {
                b'.' => return self.pop(),
                // Frames and versions are skipped.
                0x80 => self.take(1).map(|_| None)?,
                0x95 => self.take(8).map(|_| None)?,
                b'(' => Some(PickleValue::Mark),
                b')' => Some(PickleValue::tuple(Vec::new())?),
                b'}' => Some(PickleValue::Dict(Vec::new(), 1)),
                b']' | b'N' | 0x88 | 0x89 => Some(PickleValue::Other),
                b'G' => self.take(8).map(|_| Some(PickleValue::Other))?,
                b'J' => Some(PickleValue::Int(i64::from(self.int(4)? as u32 as i32))),
                b'K' => Some(PickleValue::Int(self.int(1)? as i64)),
                b'M' => Some(PickleValue::Int(self.int(2)? as i64)),
                0x8a => {
                    let count = self.int(1)? as usize;
                    // Negative values do not occur in the fields that are read.
                    Some(if count <= 8 {
                        PickleValue::Int(self.int(count)? as i64)
                    } else {
                        return None;
                    })
                }
                b'X' => Some(self.text(4)?),
                0x8c => Some(self.text(1)?),
                b'c' => Some(PickleValue::Global(
                    format!("{} {}", self.line()?, self.line()?).into(),
                )),
                0x93 => match (self.pop()?, self.pop()?) {
                    (PickleValue::Text(name), PickleValue::Text(module)) => {
                        Some(PickleValue::Global(format!("{module} {name}").into()))
                    }
                    _ => return None,
                },
                b'q' => {
                    let key = self.int(1)? as u32;
                    self.memoize(key).map(|()| None)?
                }
                b'r' => {
                    let key = self.int(4)? as u32;
                    self.memoize(key).map(|()| None)?
                }
                0x94 => {
                    let key = self.memo.len() as u32;
                    self.memoize(key).map(|()| None)?
                }
                b'h' => {
                    let key = self.int(1)? as u32;
                    Some(self.memo.get(&key)?.clone())
                }
                b'j' => {
                    let key = self.int(4)? as u32;
                    Some(self.memo.get(&key)?.clone())
                }
                b't' => Some(PickleValue::tuple(self.pop_to_mark()?)?),
                op @ 0x85..=0x87 => {
                    Some(PickleValue::tuple(self.pop_many(usize::from(op) - 0x84)?)?)
                }
                // Persistent ids are storages: ("storage", type, key, location, elements).
                b'Q' => match self.pop()?.as_tuple()? {
                    [_, PickleValue::Global(kind), PickleValue::Text(key), ..] => {
                        Some(PickleValue::Storage(key.clone(), storage_dtype(kind)))
                    }
                    _ => return None,
                },
                b'R' => match (self.pop()?, self.pop()?) {
                    (args, PickleValue::Global(function)) => {
                        Some(PickleValue::call_result(&function, &args)?)
                    }
                    _ => return None,
                },
                b's' => {
                    let pair = self.pop_many(2)?;
                    self.extend_dict(pair).map(|()| None)?
                }
                b'u' => {
                    let pairs = self.pop_to_mark()?;
                    self.extend_dict(pairs).map(|()| None)?
                }
                // Appends and state updates belong to objects that are not needed.
                b'a' | b'b' => self.pop().map(|_| None)?,
                b'e' => self.pop_to_mark().map(|_| None)?,
                _ => return None,
            };
            self.stack.extend(made);
        }
    }
}

fn storage_dtype(storage: &str) -> Option<Dtype> {
    let kind = storage.strip_prefix("torch ")?.strip_suffix("Storage")?;
    let kinds = [
        ("Float", Dtype::F32),
        ("Half", Dtype::F16),
        ("BFloat16", Dtype::BF16),
        ("Double", Dtype::F64),
        ("Int", Dtype::I32),
        ("Long", Dtype::I64),
    ];
    kinds
        .iter()
        .find(|(name, _)| *name == kind)
        .map(|(_, dtype)| *dtype)
}

/// Builds a checkpoint from a state dict whose zip starts at byte `zip` of `file` (name, size).
///
/// # Errors
/// `Malformed` when a storage is missing or too small.
pub fn checkpoint(
    file: (&str, u64),
    zip: u64,
    entries: &SortedMap<String, Range<u64>>,
    tensors: Vec<StateTensor>,
) -> Result<Checkpoint> {
    let mut made = Checkpoint::default();
    made.files.push(CheckpointFile {
        name: file.0.into(),
        size: file.1,
    });
    let places: SortedMap<&str, &Range<u64>> = entries
        .iter()
        .filter_map(|(name, range)| Some((name.split_once("/data/")?.1, range)))
        .collect();
    for StateTensor {
        name,
        storage,
        dtype,
        offset: first,
        shape,
    } in tensors
    {
        let place = places.get(&*storage).copied();
        let place =
            place.ok_or_else(|| malformed(file.0, &format!("the data of {name} is missing")))?;
        let width = dtype.bits() / 8;
        let elements = shape
            .iter()
            .try_fold(1u64, |all, size| all.checked_mul(*size as u64));
        let range = elements.and_then(|elements| {
            let start = place.start.checked_add(first.checked_mul(width)?)?;
            Some(start..start.checked_add(elements.checked_mul(width)?)?)
        });
        let range = range.filter(|range| range.end <= place.end);
        let range =
            range.ok_or_else(|| malformed(file.0, &format!("the data of {name} is too short")))?;
        let range = zip + range.start..zip + range.end;
        made.tensors.insert(
            name.clone(),
            TensorInfo {
                name,
                dtype,
                shape,
                file: 0,
                range,
            },
        );
    }
    Ok(made)
}
