//! Splits CSV into rows of fields, exactly as Python's `csv` in strict mode does.
use std::ops::Range;

/// How fields are written.
#[derive(Clone, Copy)]
pub struct Dialect {
    /// Stands between fields.
    pub delimiter: u8,
    /// Stands around fields, doubled for itself; None if nothing does.
    pub quote: Option<u8>,
}

/// What was found at a place of a block.
#[derive(Debug, PartialEq)]
pub enum Found {
    /// A row, which ends here.
    Row(usize),
    /// A line without anything, which ends here.
    Blank(usize),
    /// The block ends within a row, or where it cannot be told whether the row ends.
    Cut,
    /// The last block ends within quotes.
    OpenQuote,
    /// No CSV: Python says why.
    Broken,
}

/// Where a field lies: in the block, or in `Splitter::unquoted`, if quotes in it were doubled.
#[derive(Clone)]
enum Field {
    AsItIs(Range<usize>),
    Unquoted(Range<usize>),
}

/// Splits one row after the other.
pub struct Splitter {
    dialect: Dialect,
    fields: Vec<Field>,
    unquoted: Vec<u8>,
}

/// How a field ended.
enum FieldEnd {
    Delimiter(usize),
    LineBreak(usize),
    Block(usize),
    Stop(Found),
}

impl Splitter {
    /// For files of one dialect.
    pub fn new(dialect: Dialect) -> Self {
        Self { dialect, fields: Vec::new(), unquoted: Vec::new() }
    }

    /// The number of fields of the row.
    pub fn width(&self) -> usize {
        self.fields.len()
    }

    /// A field of the row that was found in `block`.
    pub fn field<'a>(&'a self, block: &'a [u8], number: usize) -> &'a [u8] {
        let bytes = match self.fields.get(number) {
            Some(Field::AsItIs(range)) => block.get(range.clone()),
            Some(Field::Unquoted(range)) => self.unquoted.get(range.clone()),
            None => None,
        };
        bytes.unwrap_or_default()
    }

    /// Split the row at `at` of `block`; `is_last` says that nothing follows the block.
    pub fn next_row(&mut self, block: &[u8], mut at: usize, is_last: bool) -> Found {
        self.fields.clear();
        self.unquoted.clear();
        if matches!(block.get(at), Some(b'\n' | b'\r')) {
            return line_end(block, at, is_last).map_or(Found::Cut, Found::Blank);
        }
        loop {
            let end = match block.get(at) {
                Some(byte) if Some(*byte) == self.dialect.quote => self.quoted_field(block, at + 1, is_last),
                _ => self.plain_field(block, at),
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

    fn field_end(&self, block: &[u8], at: usize) -> FieldEnd {
        match block.get(at) {
            None => FieldEnd::Block(at),
            Some(b'\n' | b'\r') => FieldEnd::LineBreak(at),
            Some(byte) if *byte == self.dialect.delimiter => FieldEnd::Delimiter(at),
            Some(_) => FieldEnd::Stop(Found::Broken),
        }
    }

    /// A field that began with a quote, before `at`.
    fn quoted_field(&mut self, block: &[u8], at: usize, is_last: bool) -> FieldEnd {
        let open = if is_last { Found::OpenQuote } else { Found::Cut };
        let Some(quote) = self.dialect.quote else {
            return FieldEnd::Stop(Found::Broken);
        };
        let (mut start, start_unquoted) = (at, self.unquoted.len());
        loop {
            let Some(size) = block.get(start..).and_then(|rest| memchr::memchr(quote, rest)) else {
                return FieldEnd::Stop(open);
            };
            let end = start + size;
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

/// Where the line ends whose break is at `at`; None if the block ends before one can tell.
fn line_end(block: &[u8], at: usize, is_last: bool) -> Option<usize> {
    match (block.get(at), block.get(at + 1)) {
        (Some(b'\r'), Some(b'\n')) => Some(at + 2),
        (Some(b'\r'), None) if !is_last => None,
        _ => Some(at + 1),
    }
}

/// The number of lines in `text`: that of the line breaks, and one more if something follows the last.
pub fn count_lines(text: &[u8]) -> u64 {
    let breaks = memchr::memchr_iter(b'\n', text).count();
    let returns = memchr::memchr_iter(b'\r', text).filter(|at| text.get(at + 1) != Some(&b'\n')).count();
    let open = usize::from(text.last().is_some_and(|byte| !matches!(byte, b'\n' | b'\r')));
    (breaks + returns + open) as u64
}
