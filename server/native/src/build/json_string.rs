//! The strings of JSON, written as orjson writes them.

/// How many bytes at the start of `text` stand for themselves in a JSON string.
pub fn plain_size(text: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let mut at = 0;
    for chunk in text.chunks_exact(8) {
        let word = u64::from_le_bytes(chunk.try_into().unwrap_or_default());
        let equals = |byte: u8| {
            let difference = word ^ (ONES * u64::from(byte));
            difference.wrapping_sub(ONES) & !difference
        };
        let special = (equals(b'"') | equals(b'\\') | (word.wrapping_sub(ONES * 0x20) & !word)) & HIGH;
        if special != 0 {
            return at + special.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let rest = text.get(at..).unwrap_or_default();
    at + rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)).unwrap_or(rest.len())
}

/// Write `text`, valid UTF-8, as the content of a JSON string.
pub fn push_escaped(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    loop {
        let (plain, special) = rest.split_at_checked(plain_size(rest)).unwrap_or((rest, b""));
        out.extend_from_slice(plain);
        let Some((&byte, after)) = special.split_first() else {
            return;
        };
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            8 => out.extend_from_slice(b"\\b"),
            9 => out.extend_from_slice(b"\\t"),
            10 => out.extend_from_slice(b"\\n"),
            12 => out.extend_from_slice(b"\\f"),
            13 => out.extend_from_slice(b"\\r"),
            _ => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
        }
        rest = after;
    }
}

/// The text that `string`, within quotes and written by `push_escaped`, stands for.
pub fn unescape(string: &[u8], text: &mut Vec<u8>) -> Option<()> {
    let mut rest = string.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    text.clear();
    while let Some(at) = memchr::memchr(b'\\', rest) {
        text.extend_from_slice(rest.get(..at)?);
        let (byte, size) = match rest.get(at + 1)? {
            b'b' => (8, 2),
            b't' => (9, 2),
            b'n' => (10, 2),
            b'f' => (12, 2),
            b'r' => (13, 2),
            b'u' => (u8::try_from(hex(rest.get(at + 2..at + 6)?)?).ok()?, 6),
            same => (*same, 2),
        };
        text.push(byte);
        rest = rest.get(at + size..)?;
    }
    text.extend_from_slice(rest);
    Some(())
}

/// The number that hexadecimal `digits` stand for.
pub fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |number, digit| Some(number << 4 | char::from(*digit).to_digit(16)?))
}
