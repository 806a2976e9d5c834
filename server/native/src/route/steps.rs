//! How a key of printable ASCII is normalised. Any other is for `keys.py`, the one place that knows all of Unicode.

/// LMDB's limit for a key: `keys.MAX_KEY_BYTES`.
pub const MAX_KEY_BYTES: usize = 511;

/// The steps of `keys.NORMALIZATIONS`, as far as printable ASCII shows them: nfc leaves it as it is.
pub struct Steps {
    strip: bool,
    lower: bool,
}

impl Steps {
    pub fn new(names: &[String]) -> Self {
        Self {
            strip: names.iter().any(|name| name == "strip"),
            lower: names.iter().any(|name| name == "lowercase" || name == "casefold"),
        }
    }

    /// The bytes under which `text`, which is printable ASCII unless there are no steps, is stored; None if no record can
    /// have this key.
    pub fn encode<'a>(&self, text: &'a [u8], buffer: &'a mut [u8; MAX_KEY_BYTES]) -> Option<&'a [u8]> {
        let text = if self.strip { text.trim_ascii() } else { text };
        if text.is_empty() {
            return None;
        }
        let room = buffer.get_mut(..text.len())?;
        if !self.lower {
            return Some(text);
        }
        room.copy_from_slice(text);
        room.make_ascii_lowercase();
        Some(room)
    }
}
