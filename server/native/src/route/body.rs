//! The body of a batch, `{"keys": [...], "partial": true}`, recognised if it is written as clients write it.
//!
//! Whatever else it is, wrong or only unusual, Python's parser says: this one accepts nothing that is not JSON, and
//! nothing whose meaning it would have to find out (a member twice, a member that it does not know).

/// A key between its quotes.
#[derive(Debug, PartialEq)]
pub struct Token {
    pub start: usize,
    pub end: usize,
    /// Whether its text is what it is written as: printable ASCII without escapes.
    pub is_plain: bool,
}

/// A body that was recognised.
#[derive(Debug, PartialEq)]
pub struct Body {
    pub tokens: Vec<Token>,
    pub is_partial: bool,
}

/// Recognises `body` if it has at most `max_keys` keys.
pub fn recognise(body: &[u8], max_keys: usize) -> Option<Body> {
    let mut cursor = Cursor { body, at: 0 };
    let mut tokens = None;
    let mut is_partial = None;
    cursor.expect(b'{')?;
    loop {
        cursor.expect(b'"')?;
        let name = cursor.read_string()?;
        cursor.expect(b':')?;
        match body.get(name.start..name.end)? {
            b"keys" if tokens.is_none() => tokens = Some(cursor.read_keys(max_keys)?),
            b"partial" if is_partial.is_none() => is_partial = Some(cursor.read_boolean()?),
            _ => return None,
        }
        match cursor.next()? {
            b',' => {}
            b'}' => break,
            _ => return None,
        }
    }
    cursor.skip_space();
    (cursor.at == body.len()).then_some(Body { tokens: tokens?, is_partial: is_partial.unwrap_or(false) })
}

struct Cursor<'a> {
    body: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn skip_space(&mut self) {
        while matches!(self.body.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// The next byte that is no space.
    fn next(&mut self) -> Option<u8> {
        self.skip_space();
        let byte = *self.body.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    fn read_boolean(&mut self) -> Option<bool> {
        self.skip_space();
        let rest = self.body.get(self.at..)?;
        let (text, value): (&[u8], bool) = if rest.starts_with(b"true") { (b"true", true) } else { (b"false", false) };
        self.at += text.len();
        rest.starts_with(text).then_some(value)
    }

    fn read_keys(&mut self, max_keys: usize) -> Option<Vec<Token>> {
        let mut tokens = Vec::with_capacity(max_keys.min(self.body.len() / 8));
        self.expect(b'[')?;
        loop {
            match self.next()? {
                b'"' if tokens.len() < max_keys => tokens.push(self.read_string()?),
                b']' if tokens.is_empty() => return Some(tokens),
                _ => return None,
            }
            match self.next()? {
                b',' => {}
                b']' => return Some(tokens),
                _ => return None,
            }
        }
    }

    /// What follows an opening quote, up to the closing one. What an escape or bytes beyond ASCII mean is not looked at.
    fn read_string(&mut self) -> Option<Token> {
        let start = self.at;
        let mut is_plain = true;
        loop {
            match *self.body.get(self.at)? {
                b'"' => break,
                b'\\' => {
                    is_plain = false;
                    self.at += 1; // what is escaped may be a quote
                }
                0..=0x1f => return None,
                0x7f.. => is_plain = false,
                _ => {}
            }
            self.at += 1;
        }
        let end = self.at;
        self.at += 1;
        Some(Token { start, end, is_plain })
    }
}
