//! Reads rows of JSON lines into keys and values, as `lookupdb.builder.json_rows` does.
//!
//! Python's parser reads every unusual row: one that is not an object, has no key, or must be rejected.
use std::collections::{HashMap, HashSet};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::json_text::{is_integer, JsonText, Member};
use super::sort::{RecordBuffer, Sample, Sink};
use crate::keys::KeyEncoder;
use crate::text::unescape;

/// The parts of a row's value. Columns are within quotes, as JSON writes them.
enum ValueRule {
    AllButKey,
    /// The members of these columns, each with its number.
    Columns(HashMap<Vec<u8>, usize>),
    Field(Vec<u8>),
    /// The text of a column; it is JSON if the flag is set.
    Text(Vec<u8>, bool),
}

#[pyclass(module = "lookupdb._native")]
pub struct JsonRows {
    keys: KeyEncoder,
    key_columns: Vec<Vec<u8>>,
    separator: Vec<u8>,
    value_rule: ValueRule,
    max_value: usize,
    /// Python reads longer lines.
    max_row: usize,
    /// Columns of the spec that no row has had so far, within quotes.
    missing: HashSet<Vec<u8>>,
    /// The names that rows have had so far, while columns are missing; None once there are enough.
    known: Option<HashSet<Vec<u8>>>,
    text: JsonText,
    inner: JsonText,
    row: Row,
}

#[derive(Default)]
struct Row {
    part: Vec<u8>,
    key_text: Vec<u8>,
    key: Vec<u8>,
    value: Vec<u8>,
}

#[pymethods]
impl JsonRows {
    /// `rule` is "all", "columns", "field", "raw" or "json"; it needs `columns`.
    #[new]
    #[expect(clippy::too_many_arguments)]
    fn new(
        steps: Vec<String>,
        encode: Py<PyAny>,
        key_columns: Vec<Vec<u8>>,
        separator: Vec<u8>,
        rule: &str,
        mut columns: Vec<Vec<u8>>,
        max_value: usize,
        max_row: usize,
    ) -> PyResult<Self> {
        let value_rule = match (rule, columns.len()) {
            ("all", 0) => ValueRule::AllButKey,
            ("columns", _) => ValueRule::Columns(columns.into_iter().zip(0..).collect()),
            ("field", 1) => ValueRule::Field(columns.remove(0)),
            ("raw", 1) => ValueRule::Text(columns.remove(0), false),
            ("json", 1) => ValueRule::Text(columns.remove(0), true),
            _ => return Err(PyValueError::new_err(format!("there is no rule {rule:?} of {} columns", columns.len()))),
        };
        Ok(Self {
            keys: KeyEncoder::new(&steps, encode)?,
            key_columns,
            separator,
            value_rule,
            max_value,
            max_row,
            missing: HashSet::new(),
            known: None,
            text: JsonText::default(),
            inner: JsonText::default(),
            row: Row::default(),
        })
    }

    /// While `missing` is not empty, leave to Python rows with a column in it, and rows with one that `known`, if given,
    /// lacks.
    fn watch(&mut self, missing: HashSet<Vec<u8>>, known: Option<HashSet<Vec<u8>>>) {
        self.missing = missing;
        self.known = known;
    }

    /// Read the lines of `block` from `at` on, until the next row is unusual or the memory is full. `place` is the
    /// previous row's. Returns where reading stopped, and the numbers of rows and lines read.
    #[expect(clippy::too_many_arguments)]
    fn read(
        &mut self,
        py: Python<'_>,
        block: &[u8],
        at: usize,
        place: u64,
        records: &mut RecordBuffer,
        memory: usize,
        sample: &mut Sample,
    ) -> PyResult<(usize, u64, u64)> {
        let mut sink = Sink::new(records, memory, sample);
        py.detach(|| self.read_lines(block, at, place, &mut sink))
    }
}

impl JsonRows {
    fn read_lines(
        &mut self,
        block: &[u8],
        mut at: usize,
        place: u64,
        sink: &mut Sink<'_>,
    ) -> PyResult<(usize, u64, u64)> {
        let (mut rows, mut lines) = (0, 0);
        while let Some(rest) = block.get(at..).filter(|rest| !rest.is_empty()) {
            let size = memchr::memchr(b'\n', rest).map_or(rest.len(), |end| end + 1);
            let line = rest.get(..size).unwrap_or_default();
            if line.len() > self.max_row {
                break;
            }
            if !is_blank(line) {
                if sink.is_full() || !self.read_row(line)? {
                    break;
                }
                rows += 1;
                sink.put(&self.row.key, place + rows, &self.row.value);
            }
            lines += 1;
            at += size;
        }
        Ok((at, rows, lines))
    }

    /// Make key and value of a row. Returns false if it is unusual.
    fn read_row(&mut self, line: &[u8]) -> PyResult<bool> {
        if std::str::from_utf8(line).is_err() || self.text.read_object(line).is_none() {
            return Ok(false);
        }
        if !self.missing.is_empty() && self.has_news() {
            return Ok(false);
        }
        if self.find_key().is_none() || !self.keys.encode(&self.row.key_text, &mut self.row.key)? {
            return Ok(false);
        }
        self.row.value.clear();
        Ok(self.find_value().is_some() && self.row.value.len() <= self.max_value)
    }

    /// Whether Python watches for a column of the row.
    fn has_news(&self) -> bool {
        self.text.members.iter().any(|member| {
            let name = self.text.part(&member.name);
            self.known.as_ref().is_some_and(|known| !known.contains(name)) || self.missing.contains(name)
        })
    }

    fn find_key(&mut self) -> Option<()> {
        self.row.key_text.clear();
        let last = self.key_columns.len().checked_sub(1)?;
        for (number, column) in self.key_columns.iter().enumerate() {
            let value = self.text.part(&self.text.find(column)?.value);
            let part = match value.first()? {
                b'"' => {
                    unescape(value, &mut self.row.part)?;
                    self.row.part.as_slice()
                }
                _ if is_integer(value) => value,
                _ => return None,
            };
            if last > 0 && part.is_empty() {
                return None;
            }
            let key_text = &mut self.row.key_text;
            let start = key_text.len();
            key_text.extend_from_slice(part);
            if number < last {
                key_text.extend_from_slice(&self.separator);
                if memchr::memmem::find(&key_text[start..], &self.separator)? < part.len() {
                    return None; // see `join_columns` in records.py
                }
            }
        }
        Some(())
    }

    fn find_value(&mut self) -> Option<()> {
        let (text, value) = (&self.text, &mut self.row.value);
        match &self.value_rule {
            ValueRule::Field(name) => value.extend_from_slice(text.part(&text.find(name)?.value)),
            ValueRule::Text(name, is_json) => {
                unescape(text.part(&text.find(name)?.value), value)?;
                if *is_json {
                    self.inner.read_value(value)?;
                    replace_breaks(value);
                }
            }
            ValueRule::Columns(numbers) => {
                let mut found: Vec<Option<&Member>> = vec![None; numbers.len()];
                for member in &text.members {
                    if let Some(place) = numbers.get(text.part(&member.name)).and_then(|&number| found.get_mut(number))
                    {
                        *place = Some(member);
                    }
                }
                push_object(value, text, found.into_iter().flatten());
            }
            ValueRule::AllButKey => {
                let is_key = |name: &[u8]| self.key_columns.iter().any(|column| column == name);
                push_object(value, text, text.members.iter().filter(|member| !is_key(text.part(&member.name))));
            }
        }
        Some(())
    }
}

fn push_object<'a>(out: &mut Vec<u8>, text: &JsonText, members: impl Iterator<Item = &'a Member>) {
    out.push(b'{');
    for (number, member) in members.enumerate() {
        if number > 0 {
            out.push(b',');
        }
        out.extend_from_slice(text.part(&(member.name.start..member.value.end)));
    }
    out.push(b'}');
}

/// Replace the line breaks and tabs between the tokens of a JSON text by spaces, as `rows.check_json_text` does.
pub fn replace_breaks(text: &mut [u8]) {
    for byte in text.iter_mut().filter(|byte| matches!(byte, b'\r' | b'\n' | b'\t')) {
        *byte = b' ';
    }
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(|byte| matches!(byte, 9..=13 | b' '))
}
