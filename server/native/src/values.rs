//! What is stored under a key becomes the RESP bulk string that answers it. The twin is `lookupdb/shardfile.py`.
use std::fmt;
use std::io::Cursor;
use zstd::zstd_safe::{DCtx, DParameter, FrameFormat, InBuffer, OutBuffer, ResetDirective};

/// The first byte of a value that is not compressed: such a frame's header never begins so.
const FRAMED: u8 = b'$';
/// The largest value with `$67108864\r\n` before and `\r\n` behind it.
const MAX_FRAMED_BYTES: u64 = (64 << 20) + 13;
/// Of the first line of a bulk string: `$`, and more digits than any size has.
const MAX_HEAD_BYTES: usize = 14;
/// A dictionary of so many bytes is not all in a core's own caches when others have had the core.
const LARGE_DICTIONARY_BYTES: usize = 256 << 10;
/// Neither in a value nor in a dictionary.
static ELSEWHERE: [u8; 1] = [0];

/// Why a stored value cannot be given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamagedValue {
    /// It claims to be so many bytes, which no value has.
    Claims(u64),
    /// It is neither framed nor compressed, or does not decompress.
    NotCompressed,
    /// What it is, or decompresses to, is not exactly one bulk string.
    NotFramed,
    /// There is no memory for it.
    NoMemory,
}

/// Makes bulk strings of the stored values of one shard.
pub struct Expander {
    context: DCtx<'static>,
    has_large_dictionary: bool,
    fetches_ahead: bool,
}

impl Expander {
    /// With the shard's dictionary, which may be empty.
    pub fn new(dictionary: &[u8]) -> Result<Expander, &'static str> {
        let mut context = DCtx::try_create().ok_or("no memory for zstd")?;
        prepare(&mut context, dictionary).map_err(zstd::zstd_safe::get_error_name)?;
        let has_large_dictionary = dictionary.len() >= LARGE_DICTIONARY_BYTES;
        Ok(Expander { context, has_large_dictionary, fetches_ahead: false })
    }

    /// Whether the dictionary may be in the core's own caches only in part.
    pub fn has_large_dictionary(&self) -> bool {
        self.has_large_dictionary
    }

    /// From now on, whether what values copy from the dictionary is fetched before it is copied. With one of 512 KiB, four
    /// shards that share a core answer a lone batch in 0.78 of the processor time; where nothing else is in the caches, a
    /// value takes a fifth longer to decompress.
    pub fn fetch_ahead(&mut self, wanted: bool) {
        self.fetches_ahead = wanted;
    }

    /// Append the bulk string that `stored` is, or is compressed from. On an error `out` is as before.
    pub fn append(&mut self, stored: &[u8], out: &mut Vec<u8>) -> Result<(), DamagedValue> {
        if stored.first() == Some(&FRAMED) {
            if !is_framed(stored) {
                return Err(DamagedValue::NotFramed);
            }
            out.extend_from_slice(stored);
            return Ok(());
        }
        let start = out.len();
        let result = self.decompress(stored, out);
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    fn decompress(&mut self, stored: &[u8], out: &mut Vec<u8>) -> Result<(), DamagedValue> {
        let size = content_size(stored).ok_or(DamagedValue::NotCompressed)?;
        if size > MAX_FRAMED_BYTES {
            return Err(DamagedValue::Claims(size));
        }
        let (start, size) = (out.len(), size as usize);
        out.try_reserve(size).map_err(|_| DamagedValue::NoMemory)?;
        let mut rest = Cursor::new(&mut *out);
        rest.set_position(start as u64);
        if self.fetches_ahead {
            self.forget_dictionary_use();
        }
        let written = match self.context.decompress(&mut rest, stored) {
            Ok(written) => written,
            Err(_) => self.decompress_first(stored, out, start)?,
        };
        if written < size {
            return Err(DamagedValue::NotCompressed);
        }
        out.truncate(start + size); // what follows the frame is none of the value, as in the twin
        if is_framed(&out[start..]) {
            Ok(())
        } else {
            Err(DamagedValue::NotFramed)
        }
    }

    /// Have zstd take the dictionary for one that is in no cache, as it does when the context last had to do with something
    /// else: it then fetches what the next eight sequences copy from there.
    fn forget_dictionary_use(&mut self) {
        // SAFETY: the block has to stay as it is until the next one, or the context's end, and is a constant.
        unsafe { self.context.insert_block(&ELSEWHERE) };
    }

    /// The same for a frame with something behind it, which is not looked at.
    #[cold]
    fn decompress_first(&mut self, stored: &[u8], out: &mut Vec<u8>, start: usize) -> Result<usize, DamagedValue> {
        let mut output = OutBuffer::around_pos(&mut *out, start);
        let mut input = InBuffer::around(stored);
        let result = self.context.decompress_stream(&mut output, &mut input);
        let written = output.pos() - start;
        let reset = self.context.reset(ResetDirective::SessionOnly);
        match (result, reset) {
            (Ok(0), Ok(_)) => Ok(written),
            _ => Err(DamagedValue::NotCompressed),
        }
    }
}

fn prepare(context: &mut DCtx, dictionary: &[u8]) -> Result<(), usize> {
    context.set_parameter(DParameter::Format(FrameFormat::Magicless))?;
    // A whole frame is decompressed to where it belongs, and needs no window: this is for frames without an end, which
    // are refused before zstd makes room for the window that they ask for.
    context.set_parameter(DParameter::WindowLogMax(10))?;
    if !dictionary.is_empty() {
        context.load_dictionary(dictionary)?;
    }
    Ok(())
}

/// The size that a compressed value claims (RFC 8878, 3.1.1.1). None if it claims none.
#[inline(always)]
fn content_size(stored: &[u8]) -> Option<u64> {
    let descriptor = *stored.first()?;
    let is_single = descriptor & 0x20 != 0;
    let start = 1 + !is_single as usize + [0, 1, 2, 4][descriptor as usize & 3];
    let size = stored.get(start..)?;
    Some(match descriptor >> 6 {
        0 if is_single => *size.first()? as u64,
        0 => return None,
        1 => u16::from_le_bytes(*size.first_chunk()?) as u64 + 256,
        2 => u32::from_le_bytes(*size.first_chunk()?) as u64,
        _ => u64::from_le_bytes(*size.first_chunk()?),
    })
}

/// Whether `reply` is exactly one RESP bulk string, which cannot corrupt the replies sent after it.
#[inline(always)]
pub fn is_framed(reply: &[u8]) -> bool {
    let (mut at, mut size) = (1, 0u64);
    while let Some(digit) = reply.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|&digit| digit <= 9) {
        size = size * 10 + digit as u64;
        at += 1;
        if at > MAX_HEAD_BYTES {
            return false;
        }
    }
    let is_canonical = at > 1 && (reply.get(1) != Some(&b'0') || at == 2);
    is_canonical
        && reply.first() == Some(&FRAMED)
        && reply.get(at..at + 2) == Some(b"\r\n")
        && reply.ends_with(b"\r\n")
        && (reply.len() - at - 2) as u64 == size + 2
}

impl fmt::Display for DamagedValue {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            DamagedValue::Claims(size) => write!(formatter, "it claims to be {size} bytes, which no value has"),
            DamagedValue::NotCompressed => formatter.write_str("it does not decompress"),
            DamagedValue::NotFramed => formatter.write_str("it is not one RESP bulk string"),
            DamagedValue::NoMemory => formatter.write_str("there is no memory for it"),
        }
    }
}
