//! RESP requests: GETs and MGETs, as client libraries write them, found in the bytes that a client sent.
//!
//! Anything else is Python's to read, legal or not: its parser knows every command, limit and error.

/// The longest key; a longer one cannot exist.
const MAX_KEY_BYTES: usize = 511;
/// The most words of an MGET that is read here: fewer than a client may send, and far more than a router sends.
const MAX_WORDS: usize = 16_384;
const GET_HEAD: &[u8] = b"*2\r\n$3\r\nGET\r\n";

/// Where a key stands in the bytes that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyAt {
    start: usize,
    end: usize,
}

impl KeyAt {
    /// The key.
    #[inline]
    pub fn of(self, data: &[u8]) -> &[u8] {
        data.get(self.start..self.end).unwrap_or_default()
    }
}

/// What the next bytes are.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// One or more GETs, and where what is behind them begins.
    Gets(usize),
    /// One MGET, and where what is behind it begins.
    Mget(usize),
    /// The beginning of a GET or an MGET, whose end has not arrived.
    Part,
    /// Anything else, or nothing.
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

/// Read the GETs at `from`, at most so many, or the one MGET there; `keys` are those that they ask for.
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

/// Read one request: its name, and where the next one begins.
fn request(data: &[u8], at: usize, keys: &mut Vec<KeyAt>) -> Result<(Name, usize), Stop> {
    let (words, at) = number(data, at, b'*', MAX_WORDS)?;
    if words < 2 {
        return Err(Stop::Other); // at once: behind a command without a word no word of it follows
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

/// Read a bulk string that may be a key: where it stands, and what is behind it.
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

/// Read a line of `prefix` and a number up to `most`, written without zeros before it.
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

#[cfg(test)]
mod tests;
