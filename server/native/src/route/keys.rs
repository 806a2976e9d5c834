//! The keys of a client's batch, and which of them each shard is asked for.
use std::borrow::Cow;
use std::collections::HashSet;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};
use xxhash_rust::xxh3::xxh3_64;

use super::body;
use super::lookups;
use super::shard_keys::{Group, PackedShardKeys};
use super::steps::{Steps, MAX_KEY_BYTES};
use super::values::PackedValues;
use crate::json_string::unescape;

/// A key as a client means it.
pub enum Key {
    /// Printable ASCII, from `start` to `end` of the texts, which JSON writes as it is.
    Plain { start: usize, end: usize },
    /// Any other text, in UTF-8.
    Text { start: usize, end: usize },
    /// What has lone surrogates and so no UTF-8: no client sends it, and no record has it.
    NoText(Py<PyString>),
}

/// The keys of a batch, in their order.
#[pyclass(frozen, module = "lookupdb._native")]
pub struct PackedKeys {
    texts: Vec<u8>,
    keys: Vec<Key>,
}

#[pymethods]
impl PackedKeys {
    #[new]
    fn new(texts: &Bound<'_, PyList>) -> PyResult<Self> {
        let mut packed = Self::with_capacity(texts.len(), 0);
        for text in texts {
            packed.push_string(text.downcast_into::<PyString>()?);
        }
        Ok(packed)
    }

    /// The distinct keys of a body, in the order in which they come first, and whether a partial answer will do.
    ///
    /// None of a body that is not written as clients write it: Python's parser says what it is.
    #[staticmethod]
    fn parse(body: &[u8], max_keys: usize) -> Option<(Self, bool)> {
        let found = body::recognise(body, max_keys)?;
        let mut packed = Self::with_capacity(found.tokens.len(), body.len());
        let mut seen: HashSet<Cow<'_, [u8]>> = HashSet::with_capacity(found.tokens.len());
        for token in &found.tokens {
            let text = body.get(token.start..token.end).unwrap_or_default();
            if token.is_plain {
                if seen.insert(Cow::Borrowed(text)) {
                    packed.push_plain(text);
                }
                continue;
            }
            let decoded = decode(body.get(token.start - 1..token.end + 1).unwrap_or_default())?;
            // What an escape stands for may also be written without one.
            if !seen.contains(&decoded) {
                packed.push_text(&decoded);
                seen.insert(decoded);
            }
        }
        Some((packed, found.is_partial))
    }

    /// The keys of the GETs at `at`, at most `most` of them, or of the MGET there: what stands there, as `lookups` has it,
    /// and where that ends.
    #[staticmethod]
    fn cut(py: Python<'_>, data: &[u8], at: usize, most: usize) -> PyResult<(u8, usize, Option<Self>)> {
        let mut found = Vec::new();
        let (kind, end) = lookups::read(data, at, most, &mut found);
        if found.is_empty() {
            return Ok((kind, end, None));
        }
        let mut packed = Self::with_capacity(found.len(), end - at);
        for key in found {
            packed.push_bytes(py, key.of(data))?;
        }
        Ok((kind, end, Some(packed)))
    }

    /// Keys as clients of RESP send them: what is no UTF-8 is a key that no record has.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, keys: Vec<Bound<'_, PyBytes>>) -> PyResult<Self> {
        let mut packed = Self::with_capacity(keys.len(), 0);
        for key in keys {
            packed.push_bytes(py, key.as_bytes())?;
        }
        Ok(packed)
    }

    fn __len__(&self) -> usize {
        self.keys.len()
    }

    /// The keys as text.
    fn to_list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for key in &self.keys {
            match key {
                Key::Plain { start, end } | Key::Text { start, end } => {
                    list.append(String::from_utf8_lossy(self.text(*start, *end)))?;
                }
                Key::NoText(text) => list.append(text)?,
            }
        }
        Ok(list)
    }

    /// The keys that a record can have, by shard, in the order in which shards come first.
    ///
    /// They are normalised by the steps of `normalize`. What is no plain ASCII is normalised by `encode`, which does the
    /// same, and needs nothing if there are no steps.
    fn group(
        &self,
        py: Python<'_>,
        encode: &Bound<'_, PyAny>,
        normalize: Vec<String>,
        shards: usize,
    ) -> PyResult<Vec<PackedShardKeys>> {
        let steps = Steps::new(&normalize);
        let mut groups = Groups::new(shards, self.keys.len());
        let mut normalised = [0u8; MAX_KEY_BYTES];
        for (position, key) in self.keys.iter().enumerate() {
            match key {
                Key::Plain { start, end } => {
                    if let Some(encoded) = steps.encode(self.text(*start, *end), &mut normalised) {
                        groups.push(position, encoded);
                    }
                }
                Key::Text { start, end } if normalize.is_empty() => {
                    if let Some(encoded) = steps.encode(self.text(*start, *end), &mut normalised) {
                        groups.push(position, encoded);
                    }
                }
                Key::Text { start, end } => {
                    let text = PyString::new(py, &String::from_utf8_lossy(self.text(*start, *end)));
                    if let Some(encoded) = encode_by(encode, &text)? {
                        groups.push(position, encoded.as_bytes());
                    }
                }
                Key::NoText(_) => {}
            }
        }
        Ok(groups.groups.into_iter().map(|group| group.finish(py)).collect())
    }

    /// A place for the value of each key.
    fn make_values(&self) -> PackedValues {
        PackedValues::new(self.keys.len())
    }
}

impl PackedKeys {
    fn with_capacity(keys: usize, text_bytes: usize) -> Self {
        Self { texts: Vec::with_capacity(text_bytes), keys: Vec::with_capacity(keys) }
    }

    fn push_plain(&mut self, text: &[u8]) {
        let start = self.texts.len();
        self.texts.extend_from_slice(text);
        self.keys.push(Key::Plain { start, end: self.texts.len() });
    }

    /// Add a key that is valid UTF-8.
    fn push_text(&mut self, text: &[u8]) {
        if is_plain(text) {
            self.push_plain(text);
        } else {
            let start = self.texts.len();
            self.texts.extend_from_slice(text);
            self.keys.push(Key::Text { start, end: self.texts.len() });
        }
    }

    fn push_bytes(&mut self, py: Python<'_>, key: &[u8]) -> PyResult<()> {
        if is_plain(key) {
            self.push_plain(key);
        } else if std::str::from_utf8(key).is_ok() {
            self.push_text(key);
        } else {
            let text = PyBytes::new(py, key).call_method1("decode", ("utf-8", "surrogateescape"))?;
            self.keys.push(Key::NoText(text.downcast_into::<PyString>()?.unbind()));
        }
        Ok(())
    }

    fn push_string(&mut self, text: Bound<'_, PyString>) {
        match text.to_str() {
            Ok(utf8) => self.push_text(utf8.as_bytes()),
            Err(_) => self.keys.push(Key::NoText(text.unbind())),
        }
    }

    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// The text of a key.
    pub fn text(&self, start: usize, end: usize) -> &[u8] {
        self.texts.get(start..end).unwrap_or_default()
    }
}

fn is_plain(text: &[u8]) -> bool {
    text.iter().all(|&byte| matches!(byte, 0x20..=0x7e) && byte != b'"' && byte != b'\\')
}

/// What a JSON string stands for, in UTF-8; None if it is none.
fn decode(quoted: &[u8]) -> Option<Cow<'_, [u8]>> {
    std::str::from_utf8(quoted).ok()?;
    if !quoted.contains(&b'\\') {
        return quoted.strip_prefix(b"\"")?.strip_suffix(b"\"").map(Cow::Borrowed);
    }
    let mut text = Vec::with_capacity(quoted.len());
    unescape(quoted, &mut text)?;
    Some(Cow::Owned(text))
}

/// The bytes under which `encode` has `text` stored; None if no record can have this key.
fn encode_by<'py>(encode: &Bound<'py, PyAny>, text: &Bound<'py, PyString>) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let py = text.py();
    match encode.call1((text,)) {
        Ok(encoded) => Ok(Some(encoded.downcast_into::<PyBytes>()?)),
        Err(error) if error.is_instance(py, &py.import("lookupdb.keys")?.getattr("InvalidKey")?) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Keys by shard; shards in the order in which they come first.
struct Groups {
    groups: Vec<Group>,
    index_of: Vec<usize>,
    keys_a_shard: usize,
}

impl Groups {
    fn new(shards: usize, keys: usize) -> Self {
        Self {
            groups: Vec::with_capacity(shards.min(keys)),
            index_of: vec![usize::MAX; shards.max(1)],
            keys_a_shard: keys / shards.max(1) * 5 / 4 + 4,
        }
    }

    fn push(&mut self, position: usize, encoded: &[u8]) {
        let shard = (xxh3_64(encoded) % self.index_of.len() as u64) as usize;
        let Some(index) = self.index_of.get_mut(shard) else {
            return; // there is one for each
        };
        if *index == usize::MAX {
            *index = self.groups.len();
            self.groups.push(Group::new(shard, self.keys_a_shard));
        }
        if let Some(group) = self.groups.get_mut(*index) {
            group.push(position, encoded);
        }
    }
}
