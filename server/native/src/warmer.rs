//! Makes the pages of requests resident before they are answered, in another thread than the one that answers.
use crate::reader::ShardFile;
use memchr::memchr;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use std::path::PathBuf;
use std::sync::Arc;

/// The longest key; a longer one cannot exist.
const MAX_KEY_BYTES: usize = 511;
/// Of the length of such a key.
const MAX_DIGITS: usize = 3;

/// Add this module's class.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PageWarmer>()
}

/// Reads from disk what lookups need. Any thread may use it, several at once; none of them holds the GIL meanwhile.
#[pyclass(frozen, module = "lookupdb._native")]
pub struct PageWarmer {
    file: Arc<ShardFile>,
}

impl PageWarmer {
    /// For the file that somebody else has mapped.
    pub fn new(file: Arc<ShardFile>) -> Self {
        PageWarmer { file }
    }
}

#[pymethods]
impl PageWarmer {
    /// Raises OSError, and ValueError for a file that is damaged or of an unknown format.
    #[new]
    fn open(path: PathBuf) -> PyResult<Self> {
        Ok(Self::new(Arc::new(ShardFile::open(&path)?)))
    }

    /// Make resident what the lookups in `requests` need, pieces of RESP. Returns how many pages were asked for.
    fn warm(&self, py: Python<'_>, requests: Vec<PyBackedBytes>) -> usize {
        py.detach(|| {
            let mut keys = Vec::new();
            for request in &requests {
                push_words(request, &mut keys);
            }
            self.file.warm(&keys)
        })
    }
}

/// Append what may be keys: every bulk string that is whole, wherever in a request `data` begins. What is none is looked
/// for in vain, which does no harm.
fn push_words<'d>(data: &'d [u8], keys: &mut Vec<&'d [u8]>) {
    let mut rest = data;
    while let Some(at) = memchr(b'$', rest) {
        rest = rest.get(at + 1..).unwrap_or_default();
        if let Some((word, behind)) = word(rest) {
            rest = behind;
            if !word.eq_ignore_ascii_case(b"GET") && !word.eq_ignore_ascii_case(b"MGET") {
                keys.push(word);
            }
        }
    }
}

/// The word whose length `data` begins with, and what is behind it.
fn word(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let digits = data.iter().take(MAX_DIGITS).take_while(|byte| byte.is_ascii_digit()).count();
    let (length, text) = data.split_at_checked(digits)?;
    let length = length.iter().fold(0, |length, digit| length * 10 + usize::from(digit - b'0'));
    let (word, behind) = text.strip_prefix(b"\r\n")?.split_at_checked(length)?;
    (1..=MAX_KEY_BYTES).contains(&length).then_some(())?;
    Some((word, behind.strip_prefix(b"\r\n")?))
}

#[cfg(test)]
mod tests {
    use super::push_words;

    fn words(data: &[u8]) -> Vec<&[u8]> {
        let mut words = Vec::new();
        push_words(data, &mut words);
        words
    }

    #[test]
    fn keys_of_pipelined_gets_and_of_an_mget() {
        assert_eq!(
            words(b"*2\r\n$3\r\nGET\r\n$2\r\nab\r\n*3\r\n$4\r\nmget\r\n$1\r\nc\r\n$2\r\n$1\r\n"),
            [&b"ab"[..], b"c", b"$1"]
        );
    }

    #[test]
    fn a_piece_that_begins_and_ends_within_keys() {
        assert_eq!(words(b"23\r\n$2\r\nab\r\n$5\r\nabc"), [b"ab"]);
    }

    #[test]
    fn what_no_key_can_be() {
        assert_eq!(words(b"$\r\n\r\n$0\r\n\r\n$9999\r\nab\r\n$1\nab$1\r\nab\r\n$"), Vec::<&[u8]>::new());
    }
}
