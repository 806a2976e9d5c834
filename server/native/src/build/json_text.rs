//! Checks JSON and writes it again as orjson does, but keeps the text of its numbers.
//!
//! Anything that is not valid JSON, or that parsers may read differently (repeated names, lone surrogates, deep
//! nesting), is *unusual*, and the result is None: Python's parsers decide.
use std::collections::HashSet;
use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use crate::text::{plain_size, push_escaped, read_escape};

/// Far fewer than `json_rows.MAX_NESTING`.
const MAX_DEPTH: usize = 64;
/// Up to this number, names are compared one by one.
const FEW_NAMES: usize = 24;

/// A member of the outermost object; both ranges are of `JsonText::out`.
pub struct Member {
    pub name: Range<usize>,
    pub value: Range<usize>,
}

#[derive(Default)]
pub struct JsonText {
    pub out: Vec<u8>,
    pub members: Vec<Member>,
    /// The hashes of the names of all open objects.
    names: Vec<u64>,
    /// Whether a number beyond the range of doubles is unusual.
    has_doubles: bool,
}

struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
}

impl JsonText {
    /// Read `text`, which is valid UTF-8 and must be an object.
    pub fn read_object(&mut self, text: &[u8]) -> Option<()> {
        self.clear();
        self.has_doubles = false;
        let mut cursor = Cursor { text, at: 0 };
        cursor.skip_space();
        if cursor.peek() != Some(b'{') {
            return None;
        }
        self.object(&mut cursor, 0)?;
        cursor.end()
    }

    /// Read `text`, valid UTF-8 and any JSON. `rows.check_json_text` reads it with orjson, whose numbers are finite.
    pub fn read_value(&mut self, text: &[u8]) -> Option<()> {
        self.clear();
        self.has_doubles = true;
        let mut cursor = Cursor { text, at: 0 };
        cursor.skip_space();
        self.value(&mut cursor, 1)?;
        cursor.end()
    }

    /// The part of the written text in `range`.
    pub fn part(&self, range: &Range<usize>) -> &[u8] {
        self.out.get(range.clone()).unwrap_or_default()
    }

    /// The member called `name`, which is within quotes as written here.
    pub fn find(&self, name: &[u8]) -> Option<&Member> {
        self.members.iter().find(|member| self.part(&member.name) == name)
    }

    fn clear(&mut self) {
        self.out.clear();
        self.members.clear();
        self.names.clear();
    }

    fn value(&mut self, cursor: &mut Cursor<'_>, depth: usize) -> Option<()> {
        match cursor.peek()? {
            b'"' => self.string(cursor),
            b'{' => self.object(cursor, depth),
            b'[' => self.array(cursor, depth),
            b't' => self.word(cursor, b"true"),
            b'f' => self.word(cursor, b"false"),
            b'n' => self.word(cursor, b"null"),
            _ => {
                let number = cursor.text.get(cursor.at..)?;
                let number = number.get(..number_size(number)?)?;
                if self.has_doubles && !is_finite(number) {
                    return None;
                }
                self.out.extend_from_slice(number);
                cursor.at += number.len();
                Some(())
            }
        }
    }

    fn word(&mut self, cursor: &mut Cursor<'_>, word: &[u8]) -> Option<()> {
        if !cursor.text.get(cursor.at..)?.starts_with(word) {
            return None;
        }
        self.out.extend_from_slice(word);
        cursor.at += word.len();
        Some(())
    }

    fn array(&mut self, cursor: &mut Cursor<'_>, depth: usize) -> Option<()> {
        if depth >= MAX_DEPTH {
            return None;
        }
        cursor.at += 1;
        self.out.push(b'[');
        cursor.skip_space();
        if cursor.peek()? == b']' {
            return self.close(cursor, b']');
        }
        loop {
            cursor.skip_space();
            self.value(cursor, depth + 1)?;
            cursor.skip_space();
            match cursor.peek()? {
                b',' => self.close(cursor, b',')?,
                b']' => return self.close(cursor, b']'),
                _ => return None,
            }
        }
    }

    fn object(&mut self, cursor: &mut Cursor<'_>, depth: usize) -> Option<()> {
        if depth >= MAX_DEPTH {
            return None;
        }
        cursor.at += 1;
        self.out.push(b'{');
        cursor.skip_space();
        if cursor.peek()? == b'}' {
            return self.close(cursor, b'}');
        }
        let mut names = Names { first: self.names.len(), many: None };
        loop {
            cursor.skip_space();
            let name_at = self.out.len();
            if cursor.peek()? != b'"' {
                return None;
            }
            self.string(cursor)?;
            names.add(&mut self.names, xxh3_64(self.out.get(name_at..)?))?;
            let name = name_at..self.out.len();
            cursor.skip_space();
            if cursor.peek()? != b':' {
                return None;
            }
            self.close(cursor, b':')?;
            cursor.skip_space();
            let value_at = self.out.len();
            self.value(cursor, depth + 1)?;
            if depth == 0 {
                self.members.push(Member { name, value: value_at..self.out.len() });
            }
            cursor.skip_space();
            match cursor.peek()? {
                b',' => self.close(cursor, b',')?,
                b'}' => break,
                _ => return None,
            }
        }
        self.names.truncate(names.first);
        self.close(cursor, b'}')
    }

    /// Skip the byte at the cursor, and write it.
    fn close(&mut self, cursor: &mut Cursor<'_>, byte: u8) -> Option<()> {
        cursor.at += 1;
        self.out.push(byte);
        Some(())
    }

    fn string(&mut self, cursor: &mut Cursor<'_>) -> Option<()> {
        cursor.at += 1;
        self.out.push(b'"');
        loop {
            let rest = cursor.text.get(cursor.at..)?;
            let size = plain_size(rest);
            self.out.extend_from_slice(rest.get(..size)?);
            cursor.at += size + 1;
            match rest.get(size)? {
                b'"' => {
                    self.out.push(b'"');
                    return Some(());
                }
                b'\\' => {
                    let (character, size) = read_escape(rest.get(size + 1..)?)?;
                    push_escaped(character.encode_utf8(&mut [0; 4]).as_bytes(), &mut self.out);
                    cursor.at += size;
                }
                _ => return None, // a control character
            }
        }
    }
}

struct Names {
    /// The index of the object's first name among the names of all open objects.
    first: usize,
    many: Option<HashSet<u64>>,
}

impl Names {
    /// Add a name to those of `open` objects; None if the object has one with this hash already.
    fn add(&mut self, open: &mut Vec<u64>, hash: u64) -> Option<()> {
        let mine = open.get(self.first..)?;
        if mine.len() < FEW_NAMES {
            if mine.contains(&hash) {
                return None;
            }
        } else {
            let many = self.many.get_or_insert_with(|| mine.iter().copied().collect());
            if !many.insert(hash) {
                return None;
            }
        }
        open.push(hash);
        Some(())
    }
}

impl Cursor<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn end(&mut self) -> Option<()> {
        self.skip_space();
        (self.at == self.text.len()).then_some(())
    }
}

/// The size of the JSON number at the start of `text`.
pub fn number_size(text: &[u8]) -> Option<usize> {
    let digits = |at: usize| text.iter().skip(at).take_while(|byte| byte.is_ascii_digit()).count();
    let mut at = usize::from(text.first() == Some(&b'-'));
    at += match text.get(at)? {
        b'0' => 1,
        b'1'..=b'9' => digits(at),
        _ => return None,
    };
    if text.get(at) == Some(&b'.') {
        let size = digits(at + 1);
        if size == 0 {
            return None;
        }
        at += 1 + size;
    }
    if matches!(text.get(at), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(text.get(at + 1), Some(b'+' | b'-')));
        let size = digits(at + 1 + sign);
        if size == 0 {
            return None;
        }
        at += 1 + sign + size;
    }
    Some(at)
}

/// Whether a double can hold `number`, perhaps rounded.
fn is_finite(number: &[u8]) -> bool {
    let is_short = number.len() < 300 && !number.iter().any(|byte| matches!(byte, b'e' | b'E'));
    is_short || std::str::from_utf8(number).is_ok_and(|text| text.parse().is_ok_and(f64::is_finite))
}

/// Whether all of `text` is an integer in JSON.
pub fn is_integer(text: &[u8]) -> bool {
    number_size(text) == Some(text.len()) && !text.iter().any(|byte| matches!(byte, b'.' | b'e' | b'E'))
}
