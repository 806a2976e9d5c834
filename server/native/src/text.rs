//! Texts: strings of JSON, the fields of JSON objects, and keys of ASCII.
use std::borrow::Cow;
use std::collections::HashMap;

use crate::reader::MAX_KEY_BYTES;

/// The number of bytes at the start of `text` that need no escapes in a JSON string.
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

/// Write `text`, valid UTF-8, as the content of a JSON string, as orjson does.
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

/// Write the text of `string`, which is within quotes, to `text`. None if it is not a string, or has a lone surrogate
/// or an escape that JSON does not know.
pub fn unescape(string: &[u8], text: &mut Vec<u8>) -> Option<()> {
    let mut rest = string.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    text.clear();
    while let Some(at) = memchr::memchr(b'\\', rest) {
        text.extend_from_slice(rest.get(..at)?);
        let (character, size) = read_escape(rest.get(at + 1..)?)?;
        text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        rest = rest.get(at + 1 + size..)?;
    }
    text.extend_from_slice(rest);
    Some(())
}

/// Read the escape at the start of `text`, after its backslash. Returns its character and its size; None for a lone
/// surrogate, or if JSON does not know it.
pub fn read_escape(text: &[u8]) -> Option<(char, usize)> {
    let character = match text.first()? {
        b'u' => return read_unicode_escape(text),
        b'b' => '\x08',
        b'f' => '\x0c',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        same @ (b'"' | b'\\' | b'/') => char::from(*same),
        _ => return None,
    };
    Some((character, 1))
}

fn read_unicode_escape(text: &[u8]) -> Option<(char, usize)> {
    let first = hex(text.get(1..5)?)?;
    let (code, size) = match first {
        0xD800..=0xDBFF => {
            if text.get(5..7)? != b"\\u" {
                return None;
            }
            let second = hex(text.get(7..11)?)?;
            if !(0xDC00..=0xDFFF).contains(&second) {
                return None;
            }
            (0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00), 11)
        }
        _ => (first, 5),
    };
    Some((char::from_u32(code)?, size))
}

fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |number, digit| Some(number << 4 | char::from(*digit).to_digit(16)?))
}

/// The text of a name or a value.
pub type Text<'a> = Cow<'a, [u8]>;

/// Call `each` with every member's name, within quotes, and its value, both as written. None if `text` is not an
/// object. Nested values are skipped, not parsed.
fn each_member<'a>(text: &'a [u8], mut each: impl FnMut(&'a [u8], &'a [u8])) -> Option<()> {
    let mut rest = skip_space(skip_space(text).strip_prefix(b"{")?);
    if let Some(end) = rest.strip_prefix(b"}") {
        return skip_space(end).is_empty().then_some(());
    }
    loop {
        let (name, behind) = rest.split_at_checked(string_size(rest)?)?;
        rest = skip_space(skip_space(behind).strip_prefix(b":")?);
        let (value, behind) = rest.split_at_checked(value_size(rest)?)?;
        each(name, value);
        rest = match skip_space(behind).split_first()? {
            (b',', behind) => skip_space(behind),
            (b'}', behind) => return skip_space(behind).is_empty().then_some(()),
            _ => return None,
        }
    }
}

/// The values of the fields called `names`, as `field_text` returns them, None for a missing one. None if `text` is not
/// an object.
pub fn select_fields<'a>(text: &'a [u8], names: &[&[u8]]) -> Option<Vec<Option<Text<'a>>>> {
    let places: HashMap<&[u8], usize> = names.iter().copied().zip(0..).collect();
    let mut values: Vec<&[u8]> = vec![NULL; names.len()];
    each_member(text, |name, value| {
        if let Some(place) = places.get(&*field_text(name)).and_then(|&place| values.get_mut(place)) {
            *place = value;
        }
    })?;
    let value_of = |name: &&[u8]| values.get(*places.get(*name)?).filter(|&&value| value != NULL);
    Some(names.iter().map(|name| value_of(name).map(|value| field_text(value))).collect())
}

/// Every field's name and value, as `field_text` returns them, in the order in which names first occur.
pub fn all_fields(text: &[u8]) -> Option<Vec<(Text<'_>, Text<'_>)>> {
    let mut places: HashMap<Text<'_>, usize> = HashMap::new();
    let mut members: Vec<(&[u8], &[u8])> = Vec::new();
    each_member(text, |name, value| {
        let place = *places.entry(field_text(name)).or_insert(members.len());
        match members.get_mut(place) {
            Some(member) => member.1 = value, // the last one counts
            None => members.push((name, value)),
        }
    })?;
    let fields = members.into_iter().filter(|(_, value)| *value != NULL);
    Some(fields.map(|(name, value)| (field_text(name), field_text(value))).collect())
}

/// A member with this value counts as missing.
const NULL: &[u8] = b"null";

/// The text of a JSON string; any other value, and an invalid string, as it is written.
fn field_text(value: &[u8]) -> Text<'_> {
    let Some(inner) = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")) else {
        return Cow::Borrowed(value);
    };
    if memchr::memchr(b'\\', inner).is_none() {
        return Cow::Borrowed(inner);
    }
    let mut text = Vec::with_capacity(inner.len());
    unescape(value, &mut text).map_or(Cow::Borrowed(value), |()| Cow::Owned(text))
}

fn skip_space(text: &[u8]) -> &[u8] {
    let size = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
    text.get(size..).unwrap_or_default()
}

/// The size of the value at the start of `text`.
fn value_size(text: &[u8]) -> Option<usize> {
    match text.first()? {
        b'"' => string_size(text),
        b'{' | b'[' => nested_size(text),
        _ => {
            let is_plain = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
            Some(text.iter().take_while(is_plain).count()).filter(|&size| size > 0)
        }
    }
}

/// The size of the string at the start of `text`, with its quotes.
fn string_size(text: &[u8]) -> Option<usize> {
    if text.first()? != &b'"' {
        return None;
    }
    let mut at = 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
        if text.get(at) == Some(&b'"') {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// The size of the array or object at the start of `text`, up to its closing bracket.
fn nested_size(text: &[u8]) -> Option<usize> {
    let (mut depth, mut at) = (0usize, 0);
    loop {
        match text.get(at)? {
            b'"' => {
                at += string_size(text.get(at..)?)?;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}

/// The steps of `keys.NORMALIZATIONS`, for ASCII only, which nfc does not change. `lookupdb.keys` knows all of Unicode.
pub struct Steps {
    strip: bool,
    lower: bool,
}

impl Steps {
    pub const NAMES: [&'static str; 4] = ["strip", "lowercase", "casefold", "nfc"];

    pub fn new(names: &[String]) -> Self {
        Self {
            strip: names.iter().any(|name| name == "strip"),
            lower: names.iter().any(|name| name == "lowercase" || name == "casefold"),
        }
    }

    /// Whether `text`, which is printable ASCII, stays as it is.
    pub fn keep(&self, text: &[u8]) -> bool {
        let has_space = |end: Option<&u8>| end == Some(&b' ');
        let has_upper = || text.iter().fold(false, |has_upper, byte| has_upper | byte.is_ascii_uppercase());
        !(self.strip && (has_space(text.first()) || has_space(text.last()))) && !(self.lower && has_upper())
    }

    /// Append the key for `text`, which is ASCII. It may be too short or too long.
    pub fn push(&self, text: &[u8], key: &mut Vec<u8>) {
        key.extend_from_slice(if self.strip { strip(text) } else { text });
        if self.lower {
            key.make_ascii_lowercase();
        }
    }

    /// The key for `text`, None if no record can have it. `text` must be ASCII, unless there are no steps.
    pub fn encode<'a>(&self, text: &'a [u8], buffer: &'a mut [u8; MAX_KEY_BYTES]) -> Option<&'a [u8]> {
        let text = if self.strip { strip(text) } else { text };
        if text.is_empty() {
            return None;
        }
        let room = buffer.get_mut(..text.len())?;
        if !self.lower {
            return Some(text);
        }
        room.copy_from_slice(text);
        room.make_ascii_lowercase();
        Some(room)
    }
}

/// `text` without the ASCII white space at its ends that `str.strip` knows.
fn strip(text: &[u8]) -> &[u8] {
    let is_space = |byte: &u8| matches!(byte, 9..=13 | 28..=32);
    let start = text.iter().position(|byte| !is_space(byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !is_space(byte)).map_or(start, |last| last + 1);
    text.get(start..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{all_fields, select_fields, Text};

    fn texts<'a>(fields: &'a [(Text<'a>, Text<'a>)]) -> Vec<(&'a [u8], &'a [u8])> {
        fields.iter().map(|(name, value)| (&**name, &**value)).collect()
    }

    #[test]
    fn members_as_written_and_text_as_text() {
        let text = br#" {"a":1.50,"b":"x\n\u00e9","c":[{"a":"]"},2],"d":null,"e\"":true,"a":-2e+5} "#;
        let fields = all_fields(text);
        let expected: [(&[u8], &[u8]); 4] =
            [(b"a", b"-2e+5"), (b"b", "x\né".as_bytes()), (b"c", br#"[{"a":"]"},2]"#), (b"e\"", b"true")];
        assert_eq!(texts(&fields.unwrap_or_default()), expected);
        let selected = select_fields(text, &[b"e\"", b"d", b"zz", b"a", b"a"]).unwrap_or_default();
        let selected: Vec<Option<&[u8]>> = selected.iter().map(Option::as_deref).collect();
        assert_eq!(selected, [Some(&b"true"[..]), None, None, Some(b"-2e+5"), Some(b"-2e+5")]);
    }

    #[test]
    fn texts_that_are_not_objects() {
        for text in
            ["", "[]", "1", "{", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{\"a\":1} 2", "{\"a\":[\"}", "{\"a\":\"\\"]
        {
            assert!(all_fields(text.as_bytes()).is_none(), "{text}");
        }
    }
}
