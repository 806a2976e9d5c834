//! The JSON that answers a batch.
use pyo3::prelude::*;

use super::batch_body::BatchBody;
use super::keys::{Key, PackedKeys};
use super::sink::Sink;
use super::values::{PackedValues, Place};
use crate::json_string::{plain_size, push_escaped};

/// What an answer is made of.
pub struct Answer<'a> {
    /// Up to the first value.
    pub start: &'a [u8],
    pub keys: &'a PackedKeys,
    pub raw: bool,
    pub partial: bool,
}

impl BatchBody for Answer<'_> {
    fn put_body(&self, py: Python<'_>, out: &mut impl Sink, values: &PackedValues) -> PyResult<()> {
        out.put(self.start);
        let mut comma: &[u8] = b"";
        for (key, place) in self.keys.keys().iter().zip(values.places()) {
            if let Some(value) = values.find(py, *place) {
                out.put(comma);
                self.put_key(py, out, key)?;
                out.put(b":");
                self.put_value(out, value);
                comma = b",";
            }
        }
        self.put_end(py, out, values.places())
    }
}

impl Answer<'_> {
    /// Puts a key as a JSON string.
    pub fn put_key(&self, py: Python<'_>, out: &mut impl Sink, key: &Key) -> PyResult<()> {
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
                text.bind(py).to_str()?; // raises what is wrong with it
            }
        }
        Ok(())
    }

    /// Puts a value: JSON as it is, raw bytes as a string of base64.
    fn put_value(&self, out: &mut impl Sink, value: &[u8]) {
        if self.raw {
            out.put(b"\"");
            out.put_base64(value);
            out.put(b"\"");
        } else {
            out.put(value);
        }
    }

    /// Puts what follows the values.
    pub fn put_end(&self, py: Python<'_>, out: &mut impl Sink, places: &[Place]) -> PyResult<()> {
        out.put(b"},\"missing\":");
        self.put_keys(py, out, places, |place| matches!(place, Place::Missing))?;
        if self.partial {
            out.put(b",\"unavailable\":");
            self.put_keys(py, out, places, |place| matches!(place, Place::Unavailable))?;
        }
        out.put(b"}");
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
        for (key, _) in self.keys.keys().iter().zip(places).filter(|(_, place)| is_listed(place)) {
            out.put(before);
            self.put_key(py, out, key)?;
            before = b",";
        }
        out.put(b"]");
        Ok(())
    }
}
