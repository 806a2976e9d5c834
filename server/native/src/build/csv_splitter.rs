//! Splits CSV into rows of fields, exactly as Python's `csv` in strict mode and `DialectReader` do.
use std::ops::Range;

#[derive(Clone, Copy)]
pub struct Dialect {
    /// The byte between fields.
    pub delimiter: u8,
    /// The byte around fields, doubled within them; None if there are no quotes.
    pub quote: Option<u8>,
    /// The byte that makes the next byte text: within quotes, or anywhere if there are no quotes.
    pub escape: Option<u8>,
}

/// What was found at a place of a block.
#[derive(Debug, PartialEq)]
pub enum Found {
    /// A row, which ends here.
    Row(usize),
    /// An empty line, which ends here.
    Blank(usize),
    /// The block ends within a row, or it is unknown whether the row ends.
    Cut,
    /// The last block ends within quotes, or after an escape.
    OpenQuote,
    /// Not valid CSV: Python reports why.
    Broken,
}

/// Where a field is: in the block, or in `Splitter::unquoted` if it had doubled quotes or escapes.
#[derive(Clone)]
enum Field {
    AsItIs(Range<usize>),
    Unquoted(Range<usize>),
    /// A null marker in the block.
    Null(Range<usize>),
}

pub struct Splitter {
    dialect: Dialect,
    /// The texts of null fields, which have no quotes.
    nulls: Vec<Vec<u8>>,
    fields: Vec<Field>,
    unquoted: Vec<u8>,
    /// The number of quotes in and around the row's quoted fields; not counted if the dialect has escapes.
    pub quotes: usize,
    /// Whether a quoted field of the row has a quote after a backslash.
    pub escaped_quote: bool,
}

enum FieldEnd {
    Delimiter(usize),
    LineBreak(usize),
    Block(usize),
    Stop(Found),
}

impl Splitter {
    /// A splitter for files of one dialect.
    pub fn new(dialect: Dialect, nulls: Vec<Vec<u8>>) -> Self {
        Self { dialect, nulls, fields: Vec::new(), unquoted: Vec::new(), quotes: 0, escaped_quote: false }
    }

    pub fn width(&self) -> usize {
        self.fields.len()
    }

    pub fn is_null(&self, number: usize) -> bool {
        matches!(self.fields.get(number), Some(Field::Null(_)))
    }

    /// A field of the row, which was found in `block`; the marker if it is null.
    pub fn field<'a>(&'a self, block: &'a [u8], number: usize) -> &'a [u8] {
        let bytes = match self.fields.get(number) {
            Some(Field::AsItIs(range) | Field::Null(range)) => block.get(range.clone()),
            Some(Field::Unquoted(range)) => self.unquoted.get(range.clone()),
            None => None,
        };
        bytes.unwrap_or_default()
    }

    /// Split the row at `at` of `block`; `is_last` means that no block follows.
    pub fn next_row(&mut self, block: &[u8], mut at: usize, is_last: bool) -> Found {
        self.fields.clear();
        self.unquoted.clear();
        (self.quotes, self.escaped_quote) = (0, false);
        if matches!(block.get(at), Some(b'\n' | b'\r')) {
            return line_end(block, at, is_last).map_or(Found::Cut, Found::Blank);
        }
        loop {
            let end = match block.get(at) {
                Some(&quote) if Some(quote) == self.dialect.quote => self.quoted_field(block, at + 1, quote, is_last),
                _ if self.dialect.escape.is_none() && self.nulls.is_empty() => self.plain_field(block, at),
                _ => self.marked_field(block, at, is_last),
            };
            match end {
                FieldEnd::Delimiter(place) => at = place + 1,
                FieldEnd::LineBreak(place) => return line_end(block, place, is_last).map_or(Found::Cut, Found::Row),
                FieldEnd::Block(place) if is_last => return Found::Row(place),
                FieldEnd::Block(_) => return Found::Cut,
                FieldEnd::Stop(found) => return found,
            }
        }
    }

    fn plain_field(&mut self, block: &[u8], at: usize) -> FieldEnd {
        let rest = block.get(at..).unwrap_or_default();
        let size = memchr::memchr3(self.dialect.delimiter, b'\n', b'\r', rest);
        let end = at + size.unwrap_or(rest.len());
        self.fields.push(Field::AsItIs(at..end));
        self.field_end(block, end)
    }

    /// A field without quotes that may be null, or have escapes.
    fn marked_field(&mut self, block: &[u8], at: usize, is_last: bool) -> FieldEnd {
        let escape = if self.dialect.quote.is_none() { self.dialect.escape } else { None };
        let end = match find_plain_end(block, at, self.dialect.delimiter, escape, is_last) {
            Some(end) => end,
            None => return FieldEnd::Stop(if is_last { Found::OpenQuote } else { Found::Cut }),
        };
        let raw = block.get(at..end).unwrap_or_default();
        if self.nulls.iter().any(|null| null == raw) {
            self.fields.push(Field::Null(at..end));
        } else if escape.is_some_and(|escape| raw.contains(&escape)) {
            if !self.push_unescaped(raw) {
                return FieldEnd::Stop(Found::Broken);
            }
        } else if self.holds_escaped_quote(raw) {
            return FieldEnd::Stop(Found::Broken);
        } else {
            self.fields.push(Field::AsItIs(at..end));
        }
        self.field_end(block, end)
    }

    fn holds_escaped_quote(&self, raw: &[u8]) -> bool {
        match (self.dialect.escape, self.dialect.quote) {
            (Some(escape), Some(quote)) => memchr::memmem::find(raw, &[escape, quote]).is_some(),
            _ => false,
        }
    }

    /// Whether an escape may precede `byte`.
    fn is_escapable(&self, byte: u8) -> bool {
        byte == self.dialect.delimiter
            || matches!(byte, b'\n' | b'\r')
            || Some(byte) == self.dialect.quote
            || Some(byte) == self.dialect.escape
    }

    /// Push `raw` without its escapes as a field; false if one precedes no escapable byte.
    fn push_unescaped(&mut self, raw: &[u8]) -> bool {
        let start = self.unquoted.len();
        let mut bytes = raw.iter();
        while let Some(&byte) = bytes.next() {
            if Some(byte) != self.dialect.escape {
                self.unquoted.push(byte);
                continue;
            }
            match bytes.next() {
                Some(&next) if self.is_escapable(next) => self.unquoted.push(next),
                _ => return false,
            }
        }
        self.fields.push(Field::Unquoted(start..self.unquoted.len()));
        true
    }

    /// A field that began with a quote, before `at`, and may have escapes.
    fn escaped_field(&mut self, block: &[u8], at: usize, quote: u8, escape: u8, is_last: bool) -> FieldEnd {
        let open = if is_last { Found::OpenQuote } else { Found::Cut };
        let (mut start, start_unquoted) = (at, self.unquoted.len());
        loop {
            let Some(size) = block.get(start..).and_then(|rest| memchr::memchr2(quote, escape, rest)) else {
                return FieldEnd::Stop(open);
            };
            let special = start + size;
            self.unquoted.extend_from_slice(block.get(start..special).unwrap_or_default());
            match (block.get(special), block.get(special + 1)) {
                (Some(&found), Some(&next)) if found == escape && self.is_escapable(next) => self.unquoted.push(next),
                (Some(&found), Some(&next)) if found == quote && next == quote => self.unquoted.push(quote),
                (Some(&found), next) if found == escape => {
                    return FieldEnd::Stop(if next.is_some() { Found::Broken } else { open });
                }
                _ => {
                    self.fields.push(Field::Unquoted(start_unquoted..self.unquoted.len()));
                    return self.field_end(block, special + 1);
                }
            }
            start = special + 2;
        }
    }

    fn field_end(&self, block: &[u8], at: usize) -> FieldEnd {
        match block.get(at) {
            None => FieldEnd::Block(at),
            Some(b'\n' | b'\r') => FieldEnd::LineBreak(at),
            Some(byte) if *byte == self.dialect.delimiter => FieldEnd::Delimiter(at),
            Some(_) => FieldEnd::Stop(Found::Broken),
        }
    }

    /// A field that began with a quote, before `at`.
    fn quoted_field(&mut self, block: &[u8], at: usize, quote: u8, is_last: bool) -> FieldEnd {
        let open = if is_last { Found::OpenQuote } else { Found::Cut };
        if let Some(escape) = self.dialect.escape {
            return self.escaped_field(block, at, quote, escape, is_last);
        }
        let (mut start, start_unquoted) = (at, self.unquoted.len());
        loop {
            let Some(size) = block.get(start..).and_then(|rest| memchr::memchr(quote, rest)) else {
                return FieldEnd::Stop(open);
            };
            let end = start + size;
            self.quotes += 2;
            self.escaped_quote |= end > at && block.get(end - 1) == Some(&b'\\');
            if block.get(end + 1) == Some(&quote) {
                self.unquoted.extend_from_slice(block.get(start..=end).unwrap_or_default());
                start = end + 2;
                continue;
            }
            if start == at {
                self.fields.push(Field::AsItIs(at..end));
            } else {
                self.unquoted.extend_from_slice(block.get(start..end).unwrap_or_default());
                self.fields.push(Field::Unquoted(start_unquoted..self.unquoted.len()));
            }
            return self.field_end(block, end + 1);
        }
    }
}

/// Where a field without quotes ends; None if the block ends after an escape.
fn find_plain_end(block: &[u8], at: usize, delimiter: u8, escape: Option<u8>, is_last: bool) -> Option<usize> {
    let mut start = at;
    loop {
        let rest = block.get(start..)?;
        let size = memchr::memchr3(delimiter, b'\n', b'\r', rest).unwrap_or(rest.len());
        let Some(place) = escape.and_then(|escape| memchr::memchr(escape, rest.get(..size)?)) else {
            return Some(start + size);
        };
        let escaped = start + place + 1;
        start = match block.get(escaped)? {
            b'\n' | b'\r' => line_end(block, escaped, is_last)?,
            _ => escaped + 1,
        };
        if start == block.len() && matches!(block.get(start - 1), Some(b'\n' | b'\r')) {
            return None;
        }
    }
}

/// The end of the line break at `at`; None if that is unknown at the block's end.
fn line_end(block: &[u8], at: usize, is_last: bool) -> Option<usize> {
    match (block.get(at), block.get(at + 1)) {
        (Some(b'\r'), Some(b'\n')) => Some(at + 2),
        (Some(b'\r'), None) if !is_last => None,
        _ => Some(at + 1),
    }
}

/// The number of lines in `text`: its line breaks, plus one if something follows the last.
pub fn count_lines(text: &[u8]) -> u64 {
    let breaks = memchr::memchr_iter(b'\n', text).count();
    let returns = memchr::memchr_iter(b'\r', text).filter(|at| text.get(at + 1) != Some(&b'\n')).count();
    let open = usize::from(text.last().is_some_and(|byte| !matches!(byte, b'\n' | b'\r')));
    (breaks + returns + open) as u64
}
