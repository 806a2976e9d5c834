//! The answer to a batch as frames: values as the bytes they are. `lookupdb.batch_frames` has the layout.
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use super::batch_body::BatchBody;
use super::keys::{Key, PackedKeys};
use super::sink::Sink;
use super::values::{PackedValues, Place};

const MISSING: i32 = -1;
const UNAVAILABLE: i32 = -2;

/// Of the values of these keys.
pub struct Frames<'a> {
    pub keys: &'a PackedKeys,
}

impl BatchBody for Frames<'_> {
    fn put_body(&self, py: Python<'_>, out: &mut impl Sink, values: &PackedValues) -> PyResult<()> {
        self.put_start(py, out, values.places())?;
        for place in values.places() {
            if let Some(value) = values.find(py, *place) {
                out.put(value);
            }
        }
        Ok(())
    }
}

impl Frames<'_> {
    /// Puts what stands before the values.
    pub fn put_start(&self, py: Python<'_>, out: &mut impl Sink, places: &[Place]) -> PyResult<()> {
        out.put(&encode_size(places.len())?);
        for key in self.keys.keys() {
            out.put(&encode_size(self.text(py, key)?.len())?);
        }
        for place in places {
            match place {
                Place::Missing => out.put(&MISSING.to_le_bytes()),
                Place::Unavailable => out.put(&UNAVAILABLE.to_le_bytes()),
                Place::Found { span, .. } => out.put(&encode_size(span.len as usize)?),
            }
        }
        for key in self.keys.keys() {
            out.put(self.text(py, key)?);
        }
        Ok(())
    }

    fn text<'a>(&'a self, py: Python<'a>, key: &'a Key) -> PyResult<&'a [u8]> {
        match key {
            Key::Plain { start, end } | Key::Text { start, end } => Ok(self.keys.text(*start, *end)),
            Key::NoText(text) => Ok(text.bind(py).to_str()?.as_bytes()), // raises what is wrong with it
        }
    }
}

fn encode_size(len: usize) -> PyResult<[u8; 4]> {
    let size = i32::try_from(len).map_err(|_| PyOverflowError::new_err("a frame of 2 GiB"))?;
    Ok(size.to_le_bytes())
}
