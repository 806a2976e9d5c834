//! All shards of a generation, mapped, and what is made of a key that is looked up in them.
use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};
use xxhash_rust::xxh3::xxh3_64;

use super::cold::ColdSwitch;
use super::keys::KeyEncoder;
use super::long_numbers::may_have_long_number;
use super::values::{plain_value, Inflater};
use crate::reader::{find_across, touch, Damage, Found, ShardFile};
use crate::route::steps::MAX_KEY_BYTES;

/// Keys of `get_many` that are looked up before their values are made: it bounds what is held of them.
const CHUNK_KEYS: usize = 1024;

/// What an answer is made into.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// What the decoders make of the bytes, where there are some.
    Value,
    /// The bytes.
    Raw,
}

/// Two functions from JSON to values: a quick one that rounds integers beyond 64 bits, and refuses some numbers; and one
/// that takes all of them as they stand.
type Decoders = (Py<PyAny>, Py<PyAny>);

/// The shards of a generation, mapped as long as it lives.
#[pyclass(frozen, module = "lookupdb._native")]
pub struct MappedGeneration {
    pub files: Vec<ShardFile>,
    records: u64,
    encoder: KeyEncoder,
    inflater: Mutex<Inflater>,
    decoders: Option<Decoders>,
    facts: Py<PyAny>,
    cold: ColdSwitch,
}

#[pymethods]
impl MappedGeneration {
    #[new]
    fn new(
        py: Python<'_>,
        paths: Vec<PathBuf>,
        normalize: Vec<String>,
        encode: Py<PyAny>,
        decoders: Option<Decoders>,
        facts: Py<PyAny>,
    ) -> PyResult<Self> {
        if paths.is_empty() {
            return Err(PyValueError::new_err("expected the path of a shard file or more"));
        }
        let files = py.detach(|| paths.iter().map(|path| ShardFile::open(path)).collect::<Result<Vec<_>, _>>())?;
        Ok(MappedGeneration {
            records: files.iter().map(ShardFile::records).sum(),
            inflater: Mutex::new(Inflater::new(files.len())),
            encoder: KeyEncoder::new(&normalize, encode),
            cold: ColdSwitch::new(),
            files,
            decoders,
            facts,
        })
    }

    /// What it was made with.
    #[getter]
    fn facts(&self, py: Python<'_>) -> Py<PyAny> {
        self.facts.clone_ref(py)
    }

    /// What the file of that shard says of itself under `name`, None if it does not. Raises Damaged, IndexError.
    fn describe<'py>(&self, py: Python<'py>, shard: usize, name: &[u8]) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let file = self.files.get(shard).ok_or_else(|| pyo3::exceptions::PyIndexError::new_err(shard))?;
        Ok(file.describe(name)?.map(|said| PyBytes::new(py, said)))
    }

    /// How many records that shard has. Raises IndexError.
    fn count(&self, shard: usize) -> PyResult<u64> {
        let file = self.files.get(shard).ok_or_else(|| pyo3::exceptions::PyIndexError::new_err(shard))?;
        Ok(file.records())
    }

    /// Whether the keys are "0", "1" and so on, without a gap. Raises what `facts` makes of damage.
    fn is_sequence(&self, py: Python<'_>) -> PyResult<bool> {
        let is_place = |key: &[u8]| parse_place(key).is_some_and(|place| place < self.records);
        for (shard, file) in self.files.iter().enumerate() {
            // Each key is there once: as many as there are records, all of them places, are all places.
            let checked = py.detach(|| {
                for item in file.items() {
                    if !is_place(item?.0) {
                        return Ok(false);
                    }
                }
                Ok(true)
            });
            if !checked.map_err(|Damage(problem)| self.damage(py, shard, None, problem))? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl MappedGeneration {
    /// How many records all shards have.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// What is stored under `key`, in the form that is asked for; None if no record has it.
    #[inline]
    pub fn get<'py>(&self, key: &Bound<'py, PyAny>, form: Form) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = key.py();
        let found = self.find(key, |shard, stored| match self.make_bytes(py, shard, stored) {
            Ok(bytes) => Ok((shard, bytes)),
            Err(problem) => Err(self.damage(py, shard, Some(key), &problem)),
        })?;
        match found {
            Some((shard, bytes)) => self.shape(shard, Some(key), bytes, form).map(Some),
            None => Ok(None),
        }
    }

    /// Whether a record has `key`, whatever its value is.
    pub fn contains(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.find(key, |_, _| Ok(()))?.is_some())
    }

    /// Call `make` with the shard of `key` and what is stored under it.
    #[inline]
    fn find<T>(&self, key: &Bound<'_, PyAny>, make: impl FnOnce(usize, &[u8]) -> PyResult<T>) -> PyResult<Option<T>> {
        self.encoder.with_encoded(key, |encoded| {
            let shard = self.place(encoded);
            let Some(file) = self.files.get(shard) else { return Ok(None) };
            if self.cold.is_cold() {
                self.cold.time(|| key.py().detach(|| touch(file.find(encoded))));
            }
            self.cold.watch(|| match file.find(encoded) {
                Ok(Some(stored)) => make(shard, stored).map(Some),
                Ok(None) => Ok(None),
                Err(Damage(problem)) => Err(self.damage(key.py(), shard, Some(key), problem)),
            })
        })
    }

    /// Put what is stored under each of `keys` into `found`, but those that are missing. Keys are looked up together.
    pub fn get_many<'py>(&self, keys: &[Bound<'py, PyAny>], form: Form, found: &Bound<'py, PyDict>) -> PyResult<()> {
        let py = found.py();
        let (mut texts, mut places) = (Vec::new(), Vec::new());
        for keys in keys.chunks(CHUNK_KEYS) {
            texts.clear();
            places.clear();
            for (number, key) in keys.iter().enumerate() {
                self.encoder.with_encoded(key, |encoded| {
                    if encoded.len() > MAX_KEY_BYTES {
                        return Ok(None); // no record has it, and it may be as large as the caller's memory
                    }
                    places.push((number, self.place(encoded), texts.len()));
                    texts.extend_from_slice(encoded);
                    Ok(Some(()))
                })?;
            }
            let results = py.detach(|| self.find_together(&texts, &places));
            for (&(number, shard, _), result) in places.iter().zip(results) {
                let Some(key) = keys.get(number) else { continue };
                let stored = result.map_err(|Damage(problem)| self.damage(py, shard, Some(key), problem))?;
                let Some(stored) = stored else { continue };
                let bytes = self.make_bytes(py, shard, stored);
                let bytes = bytes.map_err(|problem| self.damage(py, shard, Some(key), &problem))?;
                found.set_item(key, self.shape(shard, Some(key), bytes, form)?)?;
            }
        }
        Ok(())
    }

    /// What is found for each of `places`: the number of a key, its shard, and where in `texts` it begins.
    fn find_together(&self, texts: &[u8], places: &[(usize, usize, usize)]) -> Vec<Found<'_>> {
        let ends = places.iter().skip(1).map(|&(_, _, start)| start).chain([texts.len()]);
        let lookups: Vec<(&ShardFile, &[u8])> = places
            .iter()
            .zip(ends)
            .filter_map(|(&(_, shard, start), end)| Some((self.files.get(shard)?, texts.get(start..end)?)))
            .collect();
        let mut found = Vec::with_capacity(lookups.len());
        find_across(&lookups, &mut found);
        found.iter().copied().for_each(touch);
        found
    }

    /// The value that `stored` is, or is compressed from. Nothing of Python's runs meanwhile, which might come back here.
    #[inline]
    pub fn make_bytes<'py>(
        &self,
        py: Python<'py>,
        shard: usize,
        stored: &[u8],
    ) -> Result<Bound<'py, PyBytes>, Cow<'static, str>> {
        match plain_value(stored) {
            Some(Ok(value)) => Ok(PyBytes::new(py, value)),
            Some(Err(problem)) => Err(Cow::Borrowed(problem)),
            None => {
                let mut inflater = self.inflater.lock().unwrap_or_else(PoisonError::into_inner);
                inflater.inflate(py, &self.files, shard, stored)
            }
        }
    }

    /// `bytes` in the form that is asked for.
    #[inline]
    pub fn shape<'py>(
        &self,
        shard: usize,
        key: Option<&Bound<'py, PyAny>>,
        bytes: Bound<'py, PyBytes>,
        form: Form,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = bytes.py();
        match &self.decoders {
            Some((quickly, exactly)) if form == Form::Value => {
                if !may_have_long_number(bytes.as_bytes()) {
                    if let Ok(value) = quickly.bind(py).call1((&bytes,)) {
                        return Ok(value);
                    }
                }
                self.decode_exactly(exactly.bind(py), shard, key, bytes)
            }
            _ => Ok(bytes.into_any()),
        }
    }

    #[cold]
    fn decode_exactly<'py>(
        &self,
        exactly: &Bound<'py, PyAny>,
        shard: usize,
        key: Option<&Bound<'py, PyAny>>,
        bytes: Bound<'py, PyBytes>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = bytes.py();
        match exactly.call1((bytes,)) {
            Err(error) if error.is_instance_of::<PyValueError>(py) => {
                Err(self.damage(py, shard, key, &format!("it is no JSON: {error}")))
            }
            decoded => decoded,
        }
    }

    /// The error for what is damaged, as `facts` has it. Without a key it is of the shard.
    #[cold]
    pub fn damage(&self, py: Python<'_>, shard: usize, key: Option<&Bound<'_, PyAny>>, problem: &str) -> PyErr {
        let key = key.map_or_else(|| py.None(), |key| key.clone().unbind());
        match self.facts.bind(py).call_method1("describe_damage", (shard, key, problem)) {
            Ok(error) => PyErr::from_value(error),
            Err(error) => error,
        }
    }

    #[inline(always)]
    fn place(&self, encoded: &[u8]) -> usize {
        (xxh3_64(encoded) % self.files.len().max(1) as u64) as usize
    }
}

/// The key of a record as text. None if it is none, which is damage.
pub fn key_text<'py>(py: Python<'py>, key: &[u8]) -> Option<Bound<'py, PyString>> {
    std::str::from_utf8(key).ok().map(|text| PyString::new(py, text))
}

/// The number that `key` is, as Python writes it; None if it is none.
fn parse_place(key: &[u8]) -> Option<u64> {
    let is_number = key.iter().all(u8::is_ascii_digit) && (key.first() != Some(&b'0') || key.len() == 1);
    is_number.then(|| std::str::from_utf8(key).ok()?.parse().ok())?
}
