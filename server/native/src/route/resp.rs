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
    let mut head = Vec::with_capacity(24);
    head.push(b'*');
    push_number(&mut head, expected);
    head.extend_from_slice(b"\r\n");
    u32::try_from(data.len()).ok().filter(|&size| size < u32::MAX)?;
    let mut at = data.starts_with(&head).then_some(head.len())?;
    if expected > data.len() {
        return None;
    }
    let mut spans = Vec::with_capacity(expected);
    for _ in 0..expected {
        let (span, next) = read_value(data, at)?;
        spans.push(span);
        at = next;
    }
    (at == data.len()).then_some(spans)
}

/// The bulk string at `at`, and where the next element begins.
fn read_value(data: &[u8], at: usize) -> Option<(Span, usize)> {
    let rest = data.get(at..)?;
    if rest.starts_with(b"$-1\r\n") {
        return Some((MISSING, at + 5));
    }
    let (size, digits) = read_size(rest.strip_prefix(b"$")?)?;
    let start = at + 1 + digits + 2;
    let end = start.checked_add(size)?;
    let is_whole = data.get(start - 2..start)? == b"\r\n" && data.get(end..end + 2)? == b"\r\n";
    let span = Span { start: u32::try_from(start).ok()?, len: u32::try_from(size).ok()? };
    is_whole.then_some((span, end + 2))
}

/// A size as servers write it, and how many digits it has.
fn read_size(text: &[u8]) -> Option<(usize, usize)> {
    const MOST_DIGITS: usize = 9;
    let mut size = 0;
    let mut digits = 0;
    for byte in text.iter().take(MOST_DIGITS + 1) {
        if !byte.is_ascii_digit() {
            break;
        }
        size = size * 10 + usize::from(byte - b'0');
        digits += 1;
    }
    let is_plain = (1..=MOST_DIGITS).contains(&digits) && (digits == 1 || text.first() != Some(&b'0'));
    is_plain.then_some((size, digits))
}
