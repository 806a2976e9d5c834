//! Where an answer is written to: counted first, so that it is then written where it stays.
use super::resp::push_number;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Takes bytes one after the other.
pub trait Sink {
    fn put(&mut self, bytes: &[u8]);

    /// Put `value` as base64.
    fn put_base64(&mut self, value: &[u8]);
}

/// Counts what is put.
#[derive(Default)]
pub struct Length(pub usize);

impl Sink for Length {
    fn put(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }

    fn put_base64(&mut self, value: &[u8]) {
        self.0 += base64_bytes(value);
    }
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn put_base64(&mut self, value: &[u8]) {
        let start = self.len();
        self.resize(start + base64_bytes(value), 0);
        write_base64(self.get_mut(start..).unwrap_or_default(), value);
    }
}

/// Fills a room that is as large as what is put.
pub struct Room<'a> {
    rest: &'a mut [u8],
}

impl<'a> Room<'a> {
    pub fn new(room: &'a mut [u8]) -> Self {
        Self { rest: room }
    }

    pub fn is_full(&self) -> bool {
        self.rest.is_empty()
    }

    fn take(&mut self, size: usize) -> &'a mut [u8] {
        match std::mem::take(&mut self.rest).split_at_mut_checked(size) {
            Some((taken, rest)) => {
                self.rest = rest;
                taken
            }
            None => &mut [],
        }
    }
}

impl Sink for Room<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let taken = self.take(bytes.len());
        if taken.len() == bytes.len() {
            taken.copy_from_slice(bytes);
        }
    }

    fn put_base64(&mut self, value: &[u8]) {
        write_base64(self.take(base64_bytes(value)), value);
    }
}

/// `number` in decimal.
pub fn decimal(number: usize) -> Vec<u8> {
    let mut digits = Vec::with_capacity(20);
    push_number(&mut digits, number);
    digits
}

/// How many bytes `value` has as base64.
pub fn base64_bytes(value: &[u8]) -> usize {
    value.len().div_ceil(3) * 4
}

/// Fills `out`, which has `base64_bytes`, with `value`.
pub fn write_base64(out: &mut [u8], value: &[u8]) {
    let mut quads = out.chunks_exact_mut(4);
    let mut groups = value.chunks_exact(3);
    for (quad, group) in quads.by_ref().zip(groups.by_ref()) {
        write_quad(quad, group);
    }
    let rest = groups.remainder();
    if let (Some(quad), 1..) = (out.chunks_exact_mut(4).next_back(), rest.len()) {
        let mut group = [0; 3];
        for (byte, known) in group.iter_mut().zip(rest) {
            *byte = *known;
        }
        write_quad(quad, &group);
        if let Some(padding) = quad.get_mut(rest.len() + 1..) {
            padding.fill(b'=');
        }
    }
}

fn write_quad(quad: &mut [u8], group: &[u8]) {
    if let ([a, b, c, d], [x, y, z]) = (quad, group) {
        let bits = u32::from(*x) << 16 | u32::from(*y) << 8 | u32::from(*z);
        *a = DIGITS[(bits >> 18) as usize & 63];
        *b = DIGITS[(bits >> 12) as usize & 63];
        *c = DIGITS[(bits >> 6) as usize & 63];
        *d = DIGITS[bits as usize & 63];
    }
}
