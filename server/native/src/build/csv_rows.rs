//! Reads rows of CSV into keys and values, as `lookupdb.builder.csv_rows` does.
//!
//! Python reads each unusual row, and all rows from the first invalid one on.
use std::ops::Range;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use super::csv_splitter::{count_lines, Dialect, Found, Splitter};
use super::json_rows::replace_breaks;
use super::json_text::{is_integer, number_size, JsonText};
use super::sort::{RecordBuffer, Sample, Sink};
use crate::keys::KeyEncoder;
use crate::text::push_escaped;

/// How a field becomes JSON.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Integer,
    Number,
    Boolean,
    Json,
}

/// A member of a row's value.
struct Column {
    field: usize,
    /// The text before the member's value: a bracket or a comma, the member's name, and a colon.
    head: Vec<u8>,
    kind: Kind,
    empty_is_null: bool,
}

enum ValueRule {
    Object(Vec<Column>),
    Raw(usize),
    Json(usize),
}

#[pyclass(module = "lookupdb._native")]
pub struct CsvRows {
    keys: KeyEncoder,
    key_fields: Vec<usize>,
    separator: Vec<u8>,
    value_rule: ValueRule,
    max_value: usize,
    /// A row of this size may be too long for Python.
    max_row: usize,
    width: usize,
    splitter: Splitter,
    quote: Option<u8>,
    /// The number of quotes in and around quoted fields of the rows that were read last.
    quotes: usize,
    /// Whether a quoted field had a quote after a backslash, and an unquoted field a quote.
    escaped_quote: bool,
    plain_quote: bool,
    inner: JsonText,
    key_text: Vec<u8>,
    key: Vec<u8>,
    value: Vec<u8>,
}

/// Why reading stopped, for Python.
type Stop = &'static str;
/// The rest of the block is not a complete row.
const END: Stop = "end";
const FULL: Stop = "full";
/// Python must read the next row, with `read_fields`; reading continues after it.
const ODD: Stop = "odd";
/// The next row is not valid CSV or UTF-8, is too long, or has another number of fields.
const BROKEN: Stop = "broken";
/// The source ends within quotes.
const OPEN_QUOTE: Stop = "open quote";

/// Why and where reading stopped, and the numbers of rows and lines read.
type Progress = (Stop, usize, u64, u64);

#[pymethods]
impl CsvRows {
    /// `dialect` is delimiter, quote, escape and null markers. `rule` is "object" with `columns` (field, head, type,
    /// whether empty means null), or "raw" or "json" with one column.
    #[new]
    #[expect(clippy::too_many_arguments)]
    fn new(
        steps: Vec<String>,
        encode: Py<PyAny>,
        dialect: (u8, Option<u8>, Option<u8>, Vec<Vec<u8>>),
        width: usize,
        key_fields: Vec<usize>,
        separator: Vec<u8>,
        rule: &str,
        columns: Vec<(usize, Vec<u8>, String, bool)>,
        max_value: usize,
        max_row: usize,
    ) -> PyResult<Self> {
        let value_rule = match (rule, columns.as_slice()) {
            ("raw", [column]) => ValueRule::Raw(column.0),
            ("json", [column]) => ValueRule::Json(column.0),
            ("object", _) => ValueRule::Object(columns.into_iter().map(as_column).collect::<PyResult<_>>()?),
            _ => return Err(PyValueError::new_err(format!("there is no rule {rule:?} of {} columns", columns.len()))),
        };
        let (delimiter, quote, escape, nulls) = dialect;
        Ok(Self {
            keys: KeyEncoder::new(&steps, encode)?,
            key_fields,
            separator,
            value_rule,
            max_value,
            max_row,
            width,
            splitter: Splitter::new(Dialect { delimiter, quote, escape }, nulls),
            quote,
            quotes: 0,
            escaped_quote: false,
            plain_quote: false,
            inner: JsonText::default(),
            key_text: Vec::new(),
            key: Vec::new(),
            value: Vec::new(),
        })
    }

    /// Read rows of `block` from `at` on. `place` is the previous row's; `is_last` means that no block follows.
    #[expect(clippy::too_many_arguments)]
    fn read(
        &mut self,
        py: Python<'_>,
        block: &[u8],
        at: usize,
        is_last: bool,
        place: u64,
        records: &mut RecordBuffer,
        memory: usize,
        sample: &mut Sample,
    ) -> PyResult<Progress> {
        let mut sink = Sink::new(records, memory, sample);
        self.quotes = 0;
        let (stop, end, rows) = py.detach(|| self.read_rows(block, at, is_last, place, &mut sink))?;
        self.note_quotes(block, at..end);
        let lines = count_lines(block.get(at..end).unwrap_or_default());
        Ok((stop, end, rows, lines))
    }

    /// Whether a quoted field had a quote after a backslash, and an unquoted field a quote.
    fn quotes_seen(&self) -> (bool, bool) {
        (self.escaped_quote, self.plain_quote)
    }

    /// The next row: where it ends, and its fields, None for null except in the header. None if there is no complete
    /// row.
    fn read_fields<'py>(
        &mut self,
        py: Python<'py>,
        block: &[u8],
        at: usize,
        is_last: bool,
        is_header: bool,
    ) -> PyResult<Option<(usize, Bound<'py, PyList>)>> {
        let (Found::Row(end) | Found::Blank(end)) = self.splitter.next_row(block, at, is_last) else {
            return Ok(None);
        };
        let fields = self.fields(py, block, is_header)?;
        self.quotes = self.splitter.quotes;
        self.escaped_quote |= self.splitter.escaped_quote;
        self.note_quotes(block, at..end);
        Ok(Some((end, fields)))
    }
}

impl CsvRows {
    fn fields<'py>(&self, py: Python<'py>, block: &[u8], is_header: bool) -> PyResult<Bound<'py, PyList>> {
        let fields = PyList::empty(py);
        for number in 0..self.splitter.width() {
            if self.splitter.is_null(number) && !is_header {
                fields.append(py.None())?;
            } else {
                fields.append(PyString::new(py, std::str::from_utf8(self.splitter.field(block, number))?))?;
            }
        }
        Ok(fields)
    }

    /// Note whether there are more quotes in `rows` than in their quoted fields.
    fn note_quotes(&mut self, block: &[u8], rows: Range<usize>) {
        if let (Some(quote), false) = (self.quote, self.plain_quote) {
            let all = block.get(rows).map_or(0, |bytes| memchr::memchr_iter(quote, bytes).count());
            self.plain_quote = all > self.quotes;
        }
    }

    fn read_rows(
        &mut self,
        block: &[u8],
        mut at: usize,
        is_last: bool,
        place: u64,
        sink: &mut Sink<'_>,
    ) -> PyResult<(Stop, usize, u64)> {
        let mut rows = 0;
        while at < block.len() {
            if sink.is_full() {
                return Ok((FULL, at, rows));
            }
            let end = match self.splitter.next_row(block, at, is_last) {
                Found::Row(end) => end,
                Found::Blank(end) => {
                    at = end;
                    continue;
                }
                Found::Cut => break,
                Found::OpenQuote if is_text(block, at..block.len()) => return Ok((OPEN_QUOTE, at, rows)),
                Found::OpenQuote | Found::Broken => return Ok((BROKEN, at, rows)),
            };
            if self.splitter.width() != self.width || end - at >= self.max_row || !is_text(block, at..end) {
                return Ok((BROKEN, at, rows));
            }
            if !self.make_record(block)? {
                return Ok((ODD, at, rows));
            }
            rows += 1;
            self.quotes += self.splitter.quotes;
            self.escaped_quote |= self.splitter.escaped_quote;
            sink.put(&self.key, place + rows, &self.value);
            at = end;
        }
        Ok((END, at, rows))
    }

    /// Make key and value of the row. Returns false if Python must read it.
    fn make_record(&mut self, block: &[u8]) -> PyResult<bool> {
        if self.key_fields.iter().any(|&field| self.splitter.is_null(field)) {
            return Ok(false);
        }
        if let [field] = self.key_fields[..] {
            let text = self.splitter.field(block, field);
            if !self.keys.encode(text, &mut self.key)? {
                return Ok(false);
            }
        } else if self.join_key(block).is_none() || !self.keys.encode(&self.key_text, &mut self.key)? {
            return Ok(false);
        }
        self.value.clear();
        Ok(self.make_value(block).is_some() && self.value.len() <= self.max_value)
    }

    fn join_key(&mut self, block: &[u8]) -> Option<()> {
        self.key_text.clear();
        for (number, field) in self.key_fields.iter().enumerate() {
            let part = self.splitter.field(block, *field);
            let is_last = number + 1 == self.key_fields.len();
            if part.is_empty() {
                return None;
            }
            let start = self.key_text.len();
            self.key_text.extend_from_slice(part);
            if !is_last {
                self.key_text.extend_from_slice(&self.separator);
                if memchr::memmem::find(&self.key_text[start..], &self.separator)? < part.len() {
                    return None; // see `join_columns` in records.py
                }
            }
        }
        Some(())
    }

    fn make_value(&mut self, block: &[u8]) -> Option<()> {
        let value = &mut self.value;
        match &self.value_rule {
            ValueRule::Raw(field) if self.splitter.is_null(*field) => return None,
            ValueRule::Raw(field) => value.extend_from_slice(self.splitter.field(block, *field)),
            ValueRule::Json(field) if self.splitter.is_null(*field) => value.extend_from_slice(b"null"),
            ValueRule::Json(field) => push_json(self.splitter.field(block, *field), &mut self.inner, value)?,
            ValueRule::Object(columns) => {
                if columns.is_empty() {
                    value.push(b'{');
                }
                for column in columns {
                    value.extend_from_slice(&column.head);
                    if self.splitter.is_null(column.field) {
                        value.extend_from_slice(b"null");
                        continue;
                    }
                    push_field(self.splitter.field(block, column.field), column, &mut self.inner, value)?;
                }
                value.push(b'}');
            }
        }
        Some(())
    }
}

fn is_text(block: &[u8], range: Range<usize>) -> bool {
    block.get(range).is_some_and(|bytes| std::str::from_utf8(bytes).is_ok())
}

fn push_field(field: &[u8], column: &Column, inner: &mut JsonText, value: &mut Vec<u8>) -> Option<()> {
    if column.empty_is_null && field.is_empty() {
        value.extend_from_slice(b"null");
        return Some(());
    }
    match column.kind {
        Kind::Text => {
            value.push(b'"');
            push_escaped(field, value);
            value.push(b'"');
        }
        Kind::Integer if is_integer(field) => value.extend_from_slice(field),
        Kind::Number if number_size(field) == Some(field.len()) => value.extend_from_slice(field),
        Kind::Boolean => value.extend_from_slice(read_boolean(field)?),
        Kind::Json => push_json(field, inner, value)?,
        _ => return None,
    }
    Some(())
}

/// The JSON of a boolean, which exports write in several ways.
fn read_boolean(field: &[u8]) -> Option<&'static [u8]> {
    let is_word = |words: [&[u8]; 5]| words.iter().any(|word| field.eq_ignore_ascii_case(word));
    if is_word([b"true", b"t", b"yes", b"y", b"1"]) {
        Some(b"true")
    } else if is_word([b"false", b"f", b"no", b"n", b"0"]) {
        Some(b"false")
    } else {
        None
    }
}

/// Write a field that holds JSON; only its line breaks change.
fn push_json(field: &[u8], inner: &mut JsonText, value: &mut Vec<u8>) -> Option<()> {
    inner.read_value(field)?;
    let start = value.len();
    value.extend_from_slice(field);
    replace_breaks(value.get_mut(start..)?);
    Some(())
}

fn as_column((field, head, kind, empty_is_null): (usize, Vec<u8>, String, bool)) -> PyResult<Column> {
    let kind = match kind.as_str() {
        "text" => Kind::Text,
        "integer" => Kind::Integer,
        "number" => Kind::Number,
        "boolean" => Kind::Boolean,
        "json" => Kind::Json,
        _ => return Err(PyValueError::new_err(format!("the kernels know no columns of type {kind:?}"))),
    };
    Ok(Column { field, head, kind, empty_is_null })
}
