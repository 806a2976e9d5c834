//! The router's batch kernels: from a batch's body, or lookups in RESP, to shard requests, and from replies to the
//! answer.
//!
//! `PackedKeys` and `PackedValues` are the BatchKeys and BatchValues of `lookupdb.router`. Keys are normalised here if
//! they are printable ASCII; `lookupdb.keys` normalises all others.
mod body;
mod shards;

use std::borrow::Cow;
use std::collections::HashSet;

use pyo3::exceptions::{PyIndexError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::keys::encode_by_python;
use crate::reader::MAX_KEY_BYTES;
use crate::resp::{next_lookups, push_number, Next, Span};
use crate::text::{plain_size, push_escaped, unescape, Steps};
use body::{base64_bytes, write_base64, Length, Room, Sink};
use shards::{Groups, PackedShardKeys, ReplyScan, ShardReply};

/// Add this module's classes.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PackedKeys>()?;
    module.add_class::<PackedShardKeys>()?;
    module.add_class::<ShardReply>()?;
    module.add_class::<ReplyScan>()?;
    module.add_class::<PackedValues>()
}

/// A key as a client means it.
enum Key {
    /// Printable ASCII, from `start` to `end` of the texts, which needs no escapes in JSON.
    Plain { start: usize, end: usize },
    /// Any other text, in UTF-8.
    Text { start: usize, end: usize },
    /// A text with lone surrogates, which has no UTF-8: no record has it.
    NoText(Py<PyString>),
}

/// The keys of a batch, in their order.
#[pyclass(frozen, module = "lookupdb._native")]
struct PackedKeys {
    texts: Vec<u8>,
    keys: Vec<Key>,
}

#[pymethods]
impl PackedKeys {
    #[new]
    fn new(texts: &Bound<'_, PyList>) -> PyResult<Self> {
        let mut packed = Self::with_capacity(texts.len(), 0);
        for text in texts {
            let text = text.downcast_into::<PyString>()?;
            match text.to_str() {
                Ok(utf8) => packed.push_text(utf8.as_bytes()),
                Err(_) => packed.keys.push(Key::NoText(text.unbind())),
            }
        }
        Ok(packed)
    }

    /// The distinct keys of a body, in the order of their first occurrence, and whether a partial answer is accepted.
    ///
    /// None if the body is unusual: Python's parser then reads it.
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
            // The same key may be written with and without an escape.
            if !seen.contains(&decoded) {
                packed.push_text(&decoded);
                seen.insert(decoded);
            }
        }
        Some((packed, found.is_partial))
    }

    /// Cuts the lookup at `at`: up to `most` GETs, or one MGET. Returns the kind (0: anything that is
    /// not a lookup, 1: only the beginning of a lookup, 2: GETs, 3: one MGET), where the lookup ends, and its keys.
    #[staticmethod]
    fn cut(py: Python<'_>, data: &[u8], at: usize, most: usize) -> PyResult<(u8, usize, Option<Self>)> {
        let mut found = Vec::new();
        let (kind, end) = match next_lookups(data, at, most, &mut found) {
            Next::Other => (0, at),
            Next::Part => (1, at),
            Next::Gets(end) => (2, end),
            Next::Mget(end) => (3, end),
        };
        if found.is_empty() {
            return Ok((kind, end, None));
        }
        let mut packed = Self::with_capacity(found.len(), end - at);
        for key in found {
            packed.push_bytes(py, key.of(data))?;
        }
        Ok((kind, end, Some(packed)))
    }

    /// Keys as clients of RESP send them. No record has a key that is not UTF-8.
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

    /// The keys that a record can have, by shard, in the order of each shard's first key.
    ///
    /// The steps of `normalize` are applied to them: here to printable ASCII, by `encode` to everything else.
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
                Key::Text { start, end } if !normalize.is_empty() => {
                    let text = PyString::new(py, &String::from_utf8_lossy(self.text(*start, *end)));
                    if let Some(encoded) = encode_by_python(encode, &text)? {
                        groups.push(position, encoded.as_bytes());
                    }
                }
                Key::Plain { start, end } | Key::Text { start, end } => {
                    if let Some(encoded) = steps.encode(self.text(*start, *end), &mut normalised) {
                        groups.push(position, encoded);
                    }
                }
                Key::NoText(_) => {}
            }
        }
        Ok(groups.finish(py))
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

    fn text(&self, start: usize, end: usize) -> &[u8] {
        self.texts.get(start..end).unwrap_or_default()
    }
}

fn is_plain(text: &[u8]) -> bool {
    text.iter().all(|&byte| matches!(byte, 0x20..=0x7e) && byte != b'"' && byte != b'\\')
}

/// The text of a JSON string, in UTF-8; None if it is not a valid one.
fn decode(quoted: &[u8]) -> Option<Cow<'_, [u8]>> {
    std::str::from_utf8(quoted).ok()?;
    if !quoted.contains(&b'\\') {
        return quoted.strip_prefix(b"\"")?.strip_suffix(b"\"").map(Cow::Borrowed);
    }
    let mut text = Vec::with_capacity(quoted.len());
    unescape(quoted, &mut text)?;
    Some(Cow::Owned(text))
}

/// The value of a key, as far as it is known.
#[derive(Clone, Copy)]
enum Place {
    Missing,
    Unavailable,
    /// The value lies at `span` of a part.
    Found {
        part: usize,
        span: Span,
    },
}

/// The values of a batch, as shards sent them, until they are written as an answer: one place for each key.
#[pyclass(module = "lookupdb._native")]
struct PackedValues {
    places: Vec<Place>,
    parts: Vec<Py<PyBytes>>,
    /// The number of keys whose shard could not be reached.
    #[pyo3(get)]
    unavailable_count: usize,
}

#[pymethods]
impl PackedValues {
    #[new]
    fn new(keys: usize) -> Self {
        Self { places: vec![Place::Missing; keys], parts: Vec::new(), unavailable_count: 0 }
    }

    fn __len__(&self) -> usize {
        self.places.len()
    }

    /// Put the values of `keys`, the part of `values` from `offset` on, in their places. Returns their size together.
    fn place(&mut self, keys: &PackedShardKeys, values: &Bound<'_, PyAny>, offset: usize) -> PyResult<usize> {
        if let Ok(reply) = values.downcast::<ShardReply>() {
            return self.place_part(values.py(), keys, reply.get(), offset);
        }
        let list = values.downcast::<PyList>()?;
        let mut size = 0;
        for (index, entry) in keys.entries.iter().enumerate() {
            let value = list.get_item(offset + index)?;
            if value.is_none() {
                self.set(entry.position, Place::Missing)?;
                continue;
            }
            let value = value.downcast_into::<PyBytes>()?;
            let len = value.as_bytes().len();
            let span_len = u32::try_from(len).ok().filter(|&size| size < u32::MAX);
            let span_len = span_len.ok_or_else(|| PyOverflowError::new_err("a value of 4 GiB"))?;
            let span = Span { start: 0, len: span_len };
            self.set(entry.position, Place::Found { part: self.parts.len(), span })?;
            self.parts.push(value.unbind());
            size += len;
        }
        Ok(size)
    }

    /// Note that the shard of `keys` could not be reached.
    fn mark_unavailable(&mut self, keys: &PackedShardKeys) -> PyResult<()> {
        self.unavailable_count += keys.entries.len();
        keys.entries.iter().try_for_each(|entry| self.set(entry.position, Place::Unavailable))
    }

    /// The values as a list: bytes, None, or `unavailable`.
    fn to_list<'py>(&self, py: Python<'py>, unavailable: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for place in &self.places {
            match *place {
                Place::Missing => list.append(py.None())?,
                Place::Unavailable => list.append(unavailable)?,
                Place::Found { part, span } => {
                    let bytes = self.parts.get(part).map_or(&b""[..], |bytes| bytes.as_bytes(py));
                    list.append(PyBytes::new(py, span.of(bytes)))?;
                }
            }
        }
        Ok(list)
    }

    /// The answer to a batch of `keys`: `head`, the size of the body, `fields`, and the body. The body is `start` up to
    /// the first value, then the values, the missing keys and, if `partial`, the unavailable ones. JSON values are
    /// written as they are, `raw` ones as base64.
    #[allow(clippy::too_many_arguments)]
    fn encode<'py>(
        &mut self,
        py: Python<'py>,
        head: &[u8],
        fields: &[u8],
        start: &[u8],
        keys: &PackedKeys,
        raw: bool,
        partial: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.check(keys)?;
        self.encode_whole(py, &Json { start, keys, raw, partial }, Some((head, fields)))
    }

    /// The same body in pieces that follow each other. Values are freed as their piece is made; a large value is a
    /// piece of its own.
    fn encode_in_pieces<'py>(
        &mut self,
        py: Python<'py>,
        start: &[u8],
        keys: &PackedKeys,
        raw: bool,
        partial: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        self.check(keys)?;
        self.encode_pieces(py, &Json { start, keys, raw, partial })
    }

    /// The answer to a batch of `keys` as frames: `head`, the size of the body, `fields`, and the body.
    fn encode_frames<'py>(
        &mut self,
        py: Python<'py>,
        head: &[u8],
        fields: &[u8],
        keys: &PackedKeys,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.check(keys)?;
        self.encode_whole(py, &Frames { keys }, Some((head, fields)))
    }

    /// The same body in pieces that follow each other. Values are freed as their piece is made; large ones are pieces
    /// themselves.
    fn encode_frames_in_pieces<'py>(&mut self, py: Python<'py>, keys: &PackedKeys) -> PyResult<Bound<'py, PyList>> {
        self.check(keys)?;
        self.encode_pieces(py, &Frames { keys })
    }

    /// The number of keys that have a value.
    #[getter]
    fn found_count(&self) -> usize {
        self.places.iter().filter(|place| matches!(place, Place::Found { .. })).count()
    }

    /// The replies in RESP, one for each key, or a list of them: a value as a bulk string, else `nil` or `error`.
    fn encode_replies<'py>(
        &mut self,
        py: Python<'py>,
        is_list: bool,
        nil: &[u8],
        error: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.encode_whole(py, &Replies { is_list, nil, error }, None)
    }

    /// The same in pieces that follow each other. Values are freed as their piece is made.
    fn encode_replies_in_pieces<'py>(
        &mut self,
        py: Python<'py>,
        is_list: bool,
        nil: &[u8],
        error: &[u8],
    ) -> PyResult<Bound<'py, PyList>> {
        self.encode_pieces(py, &Replies { is_list, nil, error })
    }
}

impl PackedValues {
    fn place_part(
        &mut self,
        py: Python<'_>,
        keys: &PackedShardKeys,
        reply: &ShardReply,
        offset: usize,
    ) -> PyResult<usize> {
        let (bytes, spans) = reply
            .part(py, offset, keys.entries.len())
            .ok_or_else(|| PyIndexError::new_err("the reply has fewer values"))?;
        let part = self.parts.len();
        self.parts.push(bytes);
        let mut size = 0;
        for (entry, span) in keys.entries.iter().zip(spans) {
            if span.is_missing() {
                self.set(entry.position, Place::Missing)?;
            } else {
                self.set(entry.position, Place::Found { part, span })?;
                size += span.len as usize;
            }
        }
        Ok(size)
    }

    fn set(&mut self, position: usize, place: Place) -> PyResult<()> {
        let known = self.places.get_mut(position).ok_or_else(|| PyIndexError::new_err("a key of another batch"))?;
        *known = place;
        Ok(())
    }

    fn check(&self, keys: &PackedKeys) -> PyResult<()> {
        if keys.keys.len() == self.places.len() {
            return Ok(());
        }
        Err(PyTypeError::new_err("the values of another batch"))
    }

    /// `body` in one piece; with `around`, behind its head, the number of the body's bytes, and its fields.
    fn encode_whole<'py>(
        &mut self,
        py: Python<'py>,
        body: &impl Body,
        around: Option<(&[u8], &[u8])>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut size = Length::default();
        body.put(py, &mut size, self)?;
        let mut head = Vec::new();
        if let Some((start, fields)) = around {
            head.extend_from_slice(start);
            push_number(&mut head, size.0);
            head.extend_from_slice(b"\r\n");
            head.extend_from_slice(fields);
            head.extend_from_slice(b"\r\n");
        }
        PyBytes::new_with(py, head.len() + size.0, |out| {
            let mut room = Room::new(out);
            room.put(&head);
            body.put(py, &mut room, self)?;
            room.is_full().then_some(()).ok_or_else(|| PyValueError::new_err("an answer of another size"))
        })
    }

    fn encode_pieces<'py>(&mut self, py: Python<'py>, body: &impl Body) -> PyResult<Bound<'py, PyList>> {
        let mut pieces = Pieces { done: PyList::empty(py), text: Vec::new() };
        body.put(py, &mut pieces, self)?;
        pieces.end()?;
        Ok(pieces.done)
    }

    /// Call `each` for one key after the other, with its value's part and span if it has one. If `FREES`, a part is
    /// freed after the last of its values.
    #[inline(always)]
    fn for_each<'py, const FREES: bool>(
        &mut self,
        py: Python<'py>,
        mut each: impl FnMut(usize, Place, Option<(&Bound<'py, PyBytes>, Span)>) -> PyResult<()>,
    ) -> PyResult<()> {
        let last_uses = if FREES { self.last_uses() } else { Vec::new() };
        for (index, place) in self.places.iter().enumerate() {
            let (part, found) = match *place {
                Place::Found { part, span } => (part, self.parts.get(part).map(|bytes| (bytes.bind(py), span))),
                _ => (usize::MAX, None),
            };
            each(index, *place, found)?; // called here alone, so that it is inlined
            if FREES && last_uses.get(part) == Some(&index) {
                if let Some(bytes) = self.parts.get_mut(part) {
                    *bytes = PyBytes::new(py, b"").unbind();
                }
            }
        }
        Ok(())
    }

    /// The last key of each part.
    fn last_uses(&self) -> Vec<usize> {
        let mut last_uses = vec![0; self.parts.len()];
        for (index, place) in self.places.iter().enumerate() {
            if let Place::Found { part, .. } = place {
                if let Some(last) = last_uses.get_mut(*part) {
                    *last = index;
                }
            }
        }
        last_uses
    }
}

/// A sink that also takes values, which lie in parts.
trait ValueSink: Sink {
    /// Call `each` for each of `values`: see `PackedValues::for_each`.
    #[inline(always)]
    fn for_each<'py>(
        values: &mut PackedValues,
        py: Python<'py>,
        each: impl FnMut(usize, Place, Option<(&Bound<'py, PyBytes>, Span)>) -> PyResult<()>,
    ) -> PyResult<()> {
        values.for_each::<false>(py, each)
    }

    /// Put the value at `span` of `part`, as it is or as base64.
    #[inline(always)]
    fn put_value(&mut self, part: &Bound<'_, PyBytes>, span: Span, as_base64: bool) -> PyResult<()> {
        let value = span.of(part.as_bytes());
        if as_base64 {
            self.put_base64(value);
        } else {
            self.put(value);
        }
        Ok(())
    }
}

impl ValueSink for Length {}

impl ValueSink for Room<'_> {}

/// A value of at least this many bytes is a piece of its own.
const LARGE_VALUE_BYTES: usize = 4096;
/// A piece of smaller values ends when it has this many bytes.
const PIECE_BYTES: usize = 64 * 1024;

/// A large answer in pieces that follow each other, without a copy of any large value. `text` is the incomplete one.
struct Pieces<'py> {
    done: Bound<'py, PyList>,
    text: Vec<u8>,
}

impl Sink for Pieces<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.text.put(bytes);
    }

    fn put_base64(&mut self, value: &[u8]) {
        self.text.put_base64(value);
    }
}

impl ValueSink for Pieces<'_> {
    #[inline(always)]
    fn for_each<'py>(
        values: &mut PackedValues,
        py: Python<'py>,
        each: impl FnMut(usize, Place, Option<(&Bound<'py, PyBytes>, Span)>) -> PyResult<()>,
    ) -> PyResult<()> {
        values.for_each::<true>(py, each)
    }

    fn put_value(&mut self, part: &Bound<'_, PyBytes>, span: Span, as_base64: bool) -> PyResult<()> {
        let value = span.of(part.as_bytes());
        if value.len() < LARGE_VALUE_BYTES {
            if as_base64 {
                self.put_base64(value);
            } else {
                self.put(value);
            }
            return if self.text.len() < PIECE_BYTES { Ok(()) } else { self.end() };
        }
        self.end()?;
        let py = self.done.py();
        if as_base64 {
            self.done.append(PyBytes::new_with(py, base64_bytes(value), |out| {
                write_base64(out, value);
                Ok(())
            })?)
        } else if value.len() == part.as_bytes().len() {
            self.done.append(part)
        } else {
            self.done.append(PyBytes::new(py, value))
        }
    }
}

impl Pieces<'_> {
    fn end(&mut self) -> PyResult<()> {
        if !self.text.is_empty() {
            self.done.append(PyBytes::new(self.done.py(), &self.text))?;
            self.text.clear();
        }
        Ok(())
    }
}

/// The body of an answer.
trait Body {
    /// Put the body, with `values` in it.
    fn put<S: ValueSink>(&self, py: Python<'_>, out: &mut S, values: &mut PackedValues) -> PyResult<()>;
}

/// The answer to a batch as JSON.
struct Json<'a> {
    /// The body up to the first value.
    start: &'a [u8],
    keys: &'a PackedKeys,
    raw: bool,
    partial: bool,
}

impl Body for Json<'_> {
    fn put<S: ValueSink>(&self, py: Python<'_>, out: &mut S, values: &mut PackedValues) -> PyResult<()> {
        out.put(self.start);
        let mut comma: &[u8] = b"";
        S::for_each(values, py, |index, _, found| {
            let (Some((part, span)), Some(key)) = (found, self.keys.keys.get(index)) else {
                return Ok(());
            };
            out.put(comma);
            self.put_key(py, out, key)?;
            comma = b",";
            if !self.raw {
                out.put(b":");
                return out.put_value(part, span, false);
            }
            out.put(b":\"");
            out.put_value(part, span, true)?;
            out.put(b"\"");
            Ok(())
        })?;
        out.put(b"},\"missing\":");
        self.put_keys(py, out, &values.places, |place| matches!(place, Place::Missing))?;
        if self.partial {
            out.put(b",\"unavailable\":");
            self.put_keys(py, out, &values.places, |place| matches!(place, Place::Unavailable))?;
        }
        out.put(b"}");
        Ok(())
    }
}

impl Json<'_> {
    /// Put a key as a JSON string.
    #[inline(always)]
    fn put_key(&self, py: Python<'_>, out: &mut impl Sink, key: &Key) -> PyResult<()> {
        match key {
            Key::Plain { start, end } => {
                out.put(b"\"");
                out.put(self.keys.text(*start, *end));
                out.put(b"\"");
            }
            Key::Text { start, end } => {
                let text = self.keys.text(*start, *end);
                out.put(b"\"");
                if plain_size(text) == text.len() {
                    out.put(text);
                } else {
                    let mut escaped = Vec::with_capacity(text.len() * 2);
                    push_escaped(text, &mut escaped);
                    out.put(&escaped);
                }
                out.put(b"\"");
            }
            Key::NoText(text) => {
                text.bind(py).to_str()?; // raises UnicodeEncodeError
            }
        }
        Ok(())
    }

    fn put_keys(
        &self,
        py: Python<'_>,
        out: &mut impl Sink,
        places: &[Place],
        is_listed: impl Fn(&Place) -> bool,
    ) -> PyResult<()> {
        let mut before: &[u8] = b"";
        out.put(b"[");
        for (key, _) in self.keys.keys.iter().zip(places).filter(|(_, place)| is_listed(place)) {
            out.put(before);
            self.put_key(py, out, key)?;
            before = b",";
        }
        out.put(b"]");
        Ok(())
    }
}

const FRAME_MISSING: i32 = -1;
const FRAME_UNAVAILABLE: i32 = -2;

/// The answer to a batch as frames, with values as they are. `lookupdb.records` has the layout.
struct Frames<'a> {
    keys: &'a PackedKeys,
}

impl Body for Frames<'_> {
    fn put<S: ValueSink>(&self, py: Python<'_>, out: &mut S, values: &mut PackedValues) -> PyResult<()> {
        out.put(&encode_size(values.places.len())?);
        for key in &self.keys.keys {
            out.put(&encode_size(self.text(py, key)?.len())?);
        }
        for place in &values.places {
            match place {
                Place::Missing => out.put(&FRAME_MISSING.to_le_bytes()),
                Place::Unavailable => out.put(&FRAME_UNAVAILABLE.to_le_bytes()),
                Place::Found { span, .. } => out.put(&encode_size(span.len as usize)?),
            }
        }
        for key in &self.keys.keys {
            out.put(self.text(py, key)?);
        }
        S::for_each(values, py, |_, _, found| found.map_or(Ok(()), |(part, span)| out.put_value(part, span, false)))
    }
}

impl Frames<'_> {
    fn text<'a>(&'a self, py: Python<'a>, key: &'a Key) -> PyResult<&'a [u8]> {
        match key {
            Key::Plain { start, end } | Key::Text { start, end } => Ok(self.keys.text(*start, *end)),
            Key::NoText(text) => Ok(text.bind(py).to_str()?.as_bytes()), // raises UnicodeEncodeError
        }
    }
}

fn encode_size(len: usize) -> PyResult<[u8; 4]> {
    let size = i32::try_from(len).map_err(|_| PyOverflowError::new_err("a frame of 2 GiB"))?;
    Ok(size.to_le_bytes())
}

/// Replies in RESP.
struct Replies<'a> {
    /// Whether the replies are the elements of one list.
    is_list: bool,
    /// The reply for a key that no record has.
    nil: &'a [u8],
    /// The reply for a key whose shard could not be asked.
    error: &'a [u8],
}

impl Body for Replies<'_> {
    fn put<S: ValueSink>(&self, py: Python<'_>, out: &mut S, values: &mut PackedValues) -> PyResult<()> {
        if self.is_list {
            put_line(out, b'*', values.places.len());
        }
        S::for_each(values, py, |_, place, found| {
            match (found, place) {
                (Some((part, span)), _) => {
                    put_line(out, b'$', span.len as usize);
                    out.put_value(part, span, false)?;
                    out.put(b"\r\n");
                }
                (None, Place::Unavailable) => out.put(self.error),
                (None, _) => out.put(self.nil),
            }
            Ok(())
        })
    }
}

fn put_line(out: &mut impl Sink, kind: u8, number: usize) {
    let mut line = Vec::with_capacity(24);
    line.push(kind);
    push_number(&mut line, number);
    line.extend_from_slice(b"\r\n");
    out.put(&line);
}
