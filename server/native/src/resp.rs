//! RESP: the GETs and MGETs of clients, and the replies of shards, found in the bytes that were received.
//!
//! Everything else is left to Python, legal or not: its parsers know every command, limit and error.
use memchr::memchr;

use crate::reader::MAX_KEY_BYTES;

/// An MGET of more words is not read here. A client may send more; a router sends far fewer.
const MAX_WORDS: usize = 16_384;
const GET_HEAD: &[u8] = b"*2\r\n$3\r\nGET\r\n";

/// Where a key is in the received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyAt {
    start: usize,
    end: usize,
}

impl KeyAt {
    #[inline]
    pub fn of(self, data: &[u8]) -> &[u8] {
        data.get(self.start..self.end).unwrap_or_default()
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// One or more GETs, and where they end.
    Gets(usize),
    /// One MGET, and where it ends.
    Mget(usize),
    /// The beginning of a GET or an MGET, whose end has not arrived.
    Part,
    Other,
}

#[derive(Debug)]
enum Stop {
    Part,
    Other,
}

enum Name {
    Get,
    Mget,
}

/// The key, if `data` is one GET and nothing else.
#[inline]
pub fn lone_get(data: &[u8]) -> Option<KeyAt> {
    if !data.get(..GET_HEAD.len())?.eq_ignore_ascii_case(GET_HEAD) {
        return None;
    }
    match word(data, GET_HEAD.len()) {
        Ok((key, end)) if end == data.len() => Some(key),
        _ => None,
    }
}

/// Read the GETs at `from`, at most `most` of them, or the one MGET there; `keys` becomes their keys.
pub fn next_lookups(data: &[u8], from: usize, most: usize, keys: &mut Vec<KeyAt>) -> Next {
    keys.clear();
    let mut end = from;
    while end < data.len() && keys.len() < most {
        let count = keys.len();
        match request(data, end, keys) {
            Ok((Name::Get, after)) => end = after,
            Ok((Name::Mget, after)) if end == from => return Next::Mget(after),
            other => {
                keys.truncate(count);
                return match other {
                    _ if end > from => Next::Gets(end),
                    Err(Stop::Part) => Next::Part,
                    _ => Next::Other,
                };
            }
        }
    }
    if end > from {
        Next::Gets(end)
    } else {
        Next::Other
    }
}

/// Read one request. Returns its name, and where it ends.
fn request(data: &[u8], at: usize, keys: &mut Vec<KeyAt>) -> Result<(Name, usize), Stop> {
    let (words, at) = number(data, at, b'*', MAX_WORDS)?;
    if words < 2 {
        return Err(Stop::Other); // whatever follows: a lookup has a key
    }
    let (name, mut at) = word(data, at)?;
    let name = match name.of(data) {
        name if words == 2 && name.eq_ignore_ascii_case(b"GET") => Name::Get,
        name if name.eq_ignore_ascii_case(b"MGET") => Name::Mget,
        _ => return Err(Stop::Other),
    };
    for _ in 1..words {
        let (key, end) = word(data, at)?;
        keys.push(key);
        at = end;
    }
    Ok((name, at))
}

/// Read a bulk string that may be a key. Returns where the key is, and where the bulk string ends.
#[inline]
fn word(data: &[u8], at: usize) -> Result<(KeyAt, usize), Stop> {
    let (length, start) = number(data, at, b'$', MAX_KEY_BYTES)?;
    let end = start + length;
    match (data.get(end), data.get(end + 1)) {
        _ if length == 0 => Err(Stop::Other),
        (Some(b'\r'), Some(b'\n')) => Ok((KeyAt { start, end }, end + 2)),
        (None | Some(b'\r'), None) => Err(Stop::Part),
        _ => Err(Stop::Other),
    }
}

/// Read a line of `prefix` and a number up to `most`, without leading zeros. Returns the number and where the line
/// ends.
#[inline]
fn number(data: &[u8], at: usize, prefix: u8, most: usize) -> Result<(usize, usize), Stop> {
    match data.get(at) {
        Some(&first) if first == prefix => {}
        Some(_) => return Err(Stop::Other),
        None => return Err(Stop::Part),
    }
    let (mut value, mut at) = (0, at + 1);
    let start = at;
    loop {
        match data.get(at) {
            Some(digit @ b'0'..=b'9') if value > 0 || at == start => {
                value = value * 10 + usize::from(digit - b'0');
                if value > most {
                    return Err(Stop::Other);
                }
            }
            Some(b'\r') if at > start => break,
            Some(_) => return Err(Stop::Other),
            None => return Err(Stop::Part),
        }
        at += 1;
    }
    match data.get(at + 1) {
        Some(b'\n') => Ok((value, at + 2)),
        Some(_) => Err(Stop::Other),
        None => Err(Stop::Part),
    }
}

/// Appends `number` in decimal.
pub fn push_number(out: &mut Vec<u8>, number: usize) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = number;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        at -= 1;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(at..).unwrap_or_default());
}

/// Appends `text` as a bulk string.
pub fn push_bulk(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'$');
    push_number(out, text.len());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

/// Where a value lies among bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    pub start: u32,
    pub len: u32,
}

/// The span of a missing value.
pub const MISSING: Span = Span { start: 0, len: u32::MAX };

impl Span {
    pub fn is_missing(self) -> bool {
        self == MISSING
    }

    /// The value; empty if it is missing.
    pub fn of(self, data: &[u8]) -> &[u8] {
        if self.is_missing() {
            return &[];
        }
        let start = self.start as usize;
        data.get(start..start + self.len as usize).unwrap_or_default()
    }
}

/// The values of `data`, one whole reply to an MGET of `expected` keys.
///
/// None if `data` is anything else: an error, another type, less or more. The router then reads it piece by piece.
pub fn read_values(data: &[u8], expected: usize) -> Option<Vec<Span>> {
    let mut at = read_head(data, expected).filter(|_| expected <= data.len())?;
    let mut spans = Vec::with_capacity(expected);
    for _ in 0..expected {
        let rest = data.get(at..)?;
        let line = rest.iter().take(MOST_LINE_BYTES).position(|&byte| byte == b'\n')? + 1;
        let start = at + line;
        match read_value_head(rest.get(..line)?, start)? {
            Some(span) => {
                spans.push(span);
                at = start + span.len as usize + 2;
                is_ended(data, span).then_some(())?;
            }
            None => {
                spans.push(MISSING);
                at = start;
            }
        }
    }
    (at == data.len()).then_some(spans)
}

/// The longest line: `$`, at most nine digits, and the line's end.
pub const MOST_LINE_BYTES: usize = 12;

/// The size of the head of a list of `expected` elements, if `data` begins with it.
pub fn read_head(data: &[u8], expected: usize) -> Option<usize> {
    let mut head = Vec::with_capacity(24);
    head.push(b'*');
    push_number(&mut head, expected);
    head.extend_from_slice(b"\r\n");
    data.starts_with(&head).then_some(head.len())
}

/// The span of the value at `start` that `line` announces; Some(None) if it is missing.
pub fn read_value_head(line: &[u8], start: usize) -> Option<Option<Span>> {
    let digits = line.strip_prefix(b"$")?.strip_suffix(b"\r\n")?;
    if digits == b"-1" {
        return Some(None);
    }
    let is_plain = digits.iter().all(u8::is_ascii_digit) && (digits.len() == 1 || !digits.starts_with(b"0"));
    if !is_plain || digits.is_empty() || digits.len() > MOST_LINE_BYTES - 3 {
        return None;
    }
    let len = digits.iter().fold(0, |size, digit| size * 10 + u32::from(digit - b'0'));
    let span = Span { start: u32::try_from(start).ok()?, len };
    span.start.checked_add(len).map(|_| Some(span))
}

/// Whether the value at `span` is followed by a line's end.
pub fn is_ended(data: &[u8], span: Span) -> bool {
    let end = span.start as usize + span.len as usize;
    span.is_missing() || data.get(end..end + 2) == Some(b"\r\n")
}

/// Finds the values of one reply to an MGET that arrives in several pieces, each of which is read once.
pub struct Scan {
    expected: usize,
    /// Where the values found so far are.
    pub spans: Vec<Span>,
    has_head: bool,
    pub received: usize,
    /// Where the next line begins.
    next: usize,
    /// The part of that line that has arrived.
    line: Vec<u8>,
}

impl Scan {
    pub fn new(expected: usize) -> Self {
        Self { expected, spans: Vec::new(), has_head: false, received: 0, next: 0, line: Vec::new() }
    }

    /// Read the next piece. Returns whether the reply is complete; None if it is not exactly a list of values, or more
    /// follows.
    pub fn feed(&mut self, data: &[u8]) -> Option<bool> {
        let base = self.received;
        self.received += data.len();
        loop {
            if self.has_head && self.spans.len() == self.expected {
                return (self.received <= self.next).then_some(self.received == self.next);
            }
            if self.next > self.received {
                return Some(false);
            }
            let rest = data.get((self.next + self.line.len()).saturating_sub(base)..)?;
            let Some(end) = memchr(b'\n', rest) else {
                self.line.extend_from_slice(rest);
                return (self.line.len() < MOST_LINE_BYTES).then_some(false);
            };
            self.line.extend_from_slice(rest.get(..=end)?);
            self.read_line()?;
        }
    }

    fn read_line(&mut self) -> Option<()> {
        let start = self.next + self.line.len();
        if self.has_head {
            let span = read_value_head(&self.line, start)?;
            self.next = span.map_or(start, |span| start + span.len as usize + 2);
            self.spans.push(span.unwrap_or(MISSING));
        } else {
            self.has_head = read_head(&self.line, self.expected).filter(|&size| size == self.line.len()).is_some();
            self.next = self.has_head.then_some(start)?;
        }
        self.line.clear();
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(data: &[u8]) -> (Next, Vec<&[u8]>) {
        read_some(data, usize::MAX)
    }

    fn read_some(data: &[u8], most: usize) -> (Next, Vec<&[u8]>) {
        let mut keys = Vec::new();
        let next = next_lookups(data, 0, most, &mut keys);
        (next, keys.into_iter().map(|key| key.of(data)).collect())
    }

    const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n";
    const MGET: &[u8] = b"*3\r\n$4\r\nmget\r\n$2\r\n\r\n\r\n$1\r\nb\r\n";

    #[test]
    fn gets_are_read_together_and_an_mget_alone() {
        assert_eq!(read(GET), (Next::Gets(20), vec![&b"a"[..]]));
        assert_eq!(read(MGET), (Next::Mget(MGET.len()), vec![&b"\r\n"[..], b"b"]));
        let mixed = [GET, GET, MGET].concat();
        assert_eq!(read(&mixed), (Next::Gets(40), vec![&b"a"[..], b"a"]));
        assert_eq!(read_some(&mixed, 1), (Next::Gets(20), vec![&b"a"[..]]));
        assert_eq!(read_some(MGET, 1), (Next::Mget(MGET.len()), vec![&b"\r\n"[..], b"b"]));
    }

    #[test]
    fn every_beginning_of_a_lookup_is_a_part() {
        for whole in [GET, MGET] {
            for end in 1..whole.len() {
                assert_eq!(read(&whole[..end]), (Next::Part, vec![]), "{end}");
            }
        }
        let behind = [GET, &MGET[..20]].concat();
        assert_eq!(read(&behind), (Next::Gets(20), vec![&b"a"[..]]));
    }

    #[test]
    fn what_is_no_lookup_as_libraries_write_it_is_left() {
        let others: [&[u8]; 14] = [
            b"",
            b"PING\r\n",
            b"*1\r\n$4\r\nPING\r\n",
            b"*1\r\n$4\r\nMGET\r\n",
            b"*3\r\n$3\r\nGET\r\n$1\r\na\r\n$1\r\nb\r\n",
            b"*2\r\n$3\r\nSET\r\n$1\r\na\r\n",
            b"*2\r\n$3\r\nGET\r\n$01\r\na\r\n",
            b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n",
            b"*2\r\n$3\r\nGET\r\n$512\r\n",
            b"*2\r\n$3\r\nGET\r\n$1\r\nab\r\n",
            b"*-1\r\n",
            b"*0\r\n",
            b"*0\r\n$4\r\nP\n",
            b"*99999999999999999999999\r\n",
        ];
        for data in others {
            assert_eq!(read(data), (Next::Other, vec![]), "{:?}", String::from_utf8_lossy(data));
        }
    }

    #[test]
    fn a_lone_get_is_one_and_nothing_else() {
        assert_eq!(lone_get(GET).map(|key| key.of(GET)), Some(&b"a"[..]));
        assert_eq!(lone_get(&[GET, GET].concat()), None);
        assert_eq!(lone_get(&GET[..19]), None);
        assert_eq!(lone_get(b""), None);
        assert_eq!(lone_get(MGET), None);
    }
}
