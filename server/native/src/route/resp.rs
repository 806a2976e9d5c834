//! RESP bulk strings: written as keys of a request, read as values of a reply.

/// Appends `number` in decimal.
pub fn push_number(out: &mut Vec<u8>, number: usize) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = number;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        at -= 1;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(at..).unwrap_or_default());
}

/// Appends `text` as a bulk string.
pub fn push_bulk(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'$');
    push_number(out, text.len());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

/// Where a value lies among bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    pub start: u32,
    pub len: u32,
}

/// In the place of a value: no record has the key.
pub const MISSING: Span = Span { start: 0, len: u32::MAX };

impl Span {
    pub fn is_missing(self) -> bool {
        self == MISSING
    }

    /// The value; empty if it is missing.
    pub fn of(self, data: &[u8]) -> &[u8] {
        if self.is_missing() {
            return &[];
        }
        let start = self.start as usize;
        data.get(start..start + self.len as usize).unwrap_or_default()
    }
}

/// The values of `data` if that is one whole reply to an MGET of `expected` keys and nothing else.
///
/// None of whatever is not that to the letter: errors, other types, less, more. hiredis then says what it is.
pub fn read_values(data: &[u8], expected: usize) -> Option<Vec<Span>> {
    let mut at = read_head(data, expected).filter(|_| expected <= data.len())?;
    let mut spans = Vec::with_capacity(expected);
    for _ in 0..expected {
        let rest = data.get(at..)?;
        let line = rest.iter().take(MOST_LINE_BYTES).position(|&byte| byte == b'\n')? + 1;
        let start = at + line;
        match read_value_head(rest.get(..line)?, start)? {
            Some(span) => {
                spans.push(span);
                at = start + span.len as usize + 2;
                is_ended(data, span).then_some(())?;
            }
            None => {
                spans.push(MISSING);
                at = start;
            }
        }
    }
    (at == data.len()).then_some(spans)
}

/// `$`, at most nine digits, and the line's end.
pub const MOST_LINE_BYTES: usize = 12;

/// How long the head of a list of `expected` elements is, with which `data` begins.
pub fn read_head(data: &[u8], expected: usize) -> Option<usize> {
    let mut head = Vec::with_capacity(24);
    head.push(b'*');
    push_number(&mut head, expected);
    head.extend_from_slice(b"\r\n");
    data.starts_with(&head).then_some(head.len())
}

/// Where the value lies that `line` begins and that starts at `start`; Some(None) if it is missing.
pub fn read_value_head(line: &[u8], start: usize) -> Option<Option<Span>> {
    let digits = line.strip_prefix(b"$")?.strip_suffix(b"\r\n")?;
    if digits == b"-1" {
        return Some(None);
    }
    let is_plain = digits.iter().all(u8::is_ascii_digit) && (digits.len() == 1 || !digits.starts_with(b"0"));
    if !is_plain || digits.is_empty() || digits.len() > MOST_LINE_BYTES - 3 {
        return None;
    }
    let len = digits.iter().fold(0, |size, digit| size * 10 + u32::from(digit - b'0'));
    let span = Span { start: u32::try_from(start).ok()?, len };
    span.start.checked_add(len).map(|_| Some(span))
}

/// Whether what lies at `span` ends as a value does.
pub fn is_ended(data: &[u8], span: Span) -> bool {
    let end = span.start as usize + span.len as usize;
    span.is_missing() || data.get(end..end + 2) == Some(b"\r\n")
}
