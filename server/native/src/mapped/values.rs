//! What is stored becomes the value: a piece of the map, or what is decompressed from it.
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::borrow::Cow;

use crate::reader::{prefetch_all, ShardFile};
use crate::values::{is_framed, Expander};

/// The most that is kept for the next value.
const KEPT_BYTES: usize = 1 << 20;
/// Of a stored value that is not compressed.
const FRAMED: u8 = b'$';

/// Decompresses the values of all shards of a generation. They have one dictionary, as the builder writes them: one
/// context then serves all, instead of some hundred KB for each shard.
#[derive(Default)]
pub struct Inflater {
    /// With the number of a shard whose dictionary it has.
    contexts: Vec<(usize, Expander)>,
    /// The context of each shard, once it is known.
    context_numbers: Vec<Option<usize>>,
    reply: Vec<u8>,
}

impl Inflater {
    /// Of so many shards.
    pub fn new(shards: usize) -> Self {
        Inflater { context_numbers: vec![None; shards], ..Inflater::default() }
    }

    /// The value that is compressed in `stored`, a value of that shard.
    pub fn inflate<'py>(
        &mut self,
        py: Python<'py>,
        files: &[ShardFile],
        shard: usize,
        stored: &[u8],
    ) -> Result<Bound<'py, PyBytes>, Cow<'static, str>> {
        let number = match self.context_numbers.get(shard) {
            Some(Some(number)) => *number,
            _ => self.find_context(files, shard)?,
        };
        let (_, expander) = self.contexts.get_mut(number).ok_or("it has no dictionary")?;
        self.reply.clear();
        expander.append(stored, &mut self.reply).map_err(|problem| problem.to_string())?;
        let value = PyBytes::new(py, unframe(&self.reply));
        if self.reply.capacity() > KEPT_BYTES {
            self.reply = Vec::new();
        }
        Ok(value)
    }

    /// The number of the context for that shard, made if no other shard has the same dictionary.
    #[cold]
    fn find_context(&mut self, files: &[ShardFile], shard: usize) -> Result<usize, Cow<'static, str>> {
        let dictionary = |shard: usize| files.get(shard).map(ShardFile::dictionary).unwrap_or_default();
        let wanted = dictionary(shard);
        let number = match self.contexts.iter().position(|&(other, _)| dictionary(other) == wanted) {
            Some(number) => number,
            None => {
                self.contexts.push((shard, Expander::new(wanted)?));
                self.contexts.len() - 1
            }
        };
        if let Some(place) = self.context_numbers.get_mut(shard) {
            *place = Some(number);
        }
        Ok(number)
    }
}

/// The value in `stored`, if it is not compressed; None if it is.
#[inline(always)]
pub fn plain_value(stored: &[u8]) -> Option<Result<&[u8], &'static str>> {
    prefetch_all(stored);
    if stored.first() != Some(&FRAMED) {
        return None;
    }
    Some(if is_framed(stored) { Ok(unframe(stored)) } else { Err("it is not one RESP bulk string") })
}

/// The value within a bulk string.
#[inline(always)]
fn unframe(framed: &[u8]) -> &[u8] {
    let start = framed.iter().position(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    framed.get(start..framed.len().saturating_sub(2)).unwrap_or_default()
}
