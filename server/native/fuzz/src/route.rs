//! What must hold of the router's batches for any bytes: a client's body, and a shard's reply.
#[path = "../../src/route/body.rs"]
pub mod body;

use crate::reader::MAX_KEY_BYTES;
use crate::resp::{is_ended, push_bulk, push_number, read_values, Scan, Span};
use crate::text::{plain_size, push_escaped, unescape, Steps};
use body::{base64_bytes, recognise, write_base64, Body, Length, Room, Sink};

/// Read a batch's body. Panics unless all of it is read, and keys are normalised as defined.
pub fn check_body(data: &[u8], max_keys: usize) -> bool {
    let Some(found) = recognise(data, max_keys) else {
        return false;
    };
    assert!(found.tokens.len() <= max_keys);
    assert!(spellings(data, &found).contains(&without_space(data)), "something else stands there");
    let text = data.trim_ascii_end();
    assert_eq!(recognise(&text[..text.len() - 1], max_keys), None, "less is no body");
    for token in &found.tokens {
        let text = &data[token.start..token.end];
        let is_plain = text.iter().all(|&byte| (0x20..0x7F).contains(&byte) && !b"\"\\".contains(&byte));
        assert_eq!(token.is_plain, is_plain);
        assert!(text.iter().all(|&byte| byte >= 0x20), "JSON allows it by an escape only");
        if is_plain {
            check_steps(text);
        }
        check_string(&data[token.start - 1..token.end + 1], is_plain);
    }
    true
}

/// Decode a JSON string, and encode the text again.
fn check_string(quoted: &[u8], is_plain: bool) {
    let (mut text, mut again, mut content) = (vec![], vec![], vec![]);
    let Some(()) = std::str::from_utf8(quoted).ok().and_then(|_| unescape(quoted, &mut text)) else {
        assert!(!is_plain);
        return;
    };
    assert!(std::str::from_utf8(&text).is_ok());
    push_escaped(&text, &mut content);
    assert_eq!(plain_size(&text) == text.len(), content == text);
    assert!(content.iter().all(|&byte| byte >= 0x20));
    let written = [b"\"", content.as_slice(), b"\""].concat();
    assert_eq!(unescape(&written, &mut again), Some(()));
    assert_eq!(again, text);
    assert!(!is_plain || written == quoted);
}

/// The ways to write what was found, without space.
fn spellings(data: &[u8], found: &Body) -> Vec<Vec<u8>> {
    let keys: Vec<&[u8]> = found.tokens.iter().map(|token| &data[token.start - 1..token.end + 1]).collect();
    let keys = [b"\"keys\":[", keys.join(&b","[..]).as_slice(), b"]"].concat();
    let partial = format!("\"partial\":{}", found.is_partial).into_bytes();
    let mut spellings = vec![[b"{", keys.as_slice(), b",", &partial, b"}"].concat()];
    spellings.push([b"{", partial.as_slice(), b",", &keys, b"}"].concat());
    if !found.is_partial {
        spellings.push([b"{", keys.as_slice(), b"}"].concat());
    }
    spellings
}

/// `data` without the space that is outside of its strings.
fn without_space(data: &[u8]) -> Vec<u8> {
    let (mut is_string, mut is_escaped, mut text) = (false, false, vec![]);
    for &byte in data {
        if is_string || !b" \t\r\n".contains(&byte) {
            text.push(byte);
        }
        is_string ^= byte == b'"' && !is_escaped;
        is_escaped = is_string && byte == b'\\' && !is_escaped;
    }
    text
}

fn check_steps(text: &[u8]) {
    for names in [&[][..], &["strip"], &["lowercase"], &["casefold", "nfc", "strip"]] {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let has = |name: &str| names.iter().any(|step| step == name);
        let stripped = if has("strip") { text.trim_ascii() } else { text };
        let lower = if has("lowercase") || has("casefold") { stripped.to_ascii_lowercase() } else { stripped.to_vec() };
        let expected = (1..=MAX_KEY_BYTES).contains(&lower.len()).then_some(lower);
        let mut buffer = [0; MAX_KEY_BYTES];
        assert_eq!(Steps::new(&names).encode(text, &mut buffer).map(<[u8]>::to_vec), expected);
    }
}

/// Read a reply to an MGET of `expected` keys. Panics unless reading it whole and in pieces gives the same, writing
/// what was read gives its bytes again, and the written values have the counted length.
pub fn check_reply(data: &[u8], expected: usize, cuts: [usize; 2]) -> bool {
    let found = read_values(data, expected);
    assert_eq!(read_pieces(data, expected, cuts), found, "in pieces it is another");
    let Some(spans) = found else {
        return false;
    };
    assert_eq!(spans.len(), expected);
    let mut text = format!("*{expected}\r\n").into_bytes();
    for span in &spans {
        if span.is_missing() {
            text.extend_from_slice(b"$-1\r\n");
        } else {
            push_bulk(&mut text, span.of(data));
        }
    }
    assert_eq!(text, data);
    check_answer(&spans.iter().map(|span| span.of(data)).collect::<Vec<_>>());
    true
}

fn read_pieces(data: &[u8], expected: usize, cuts: [usize; 2]) -> Option<Vec<Span>> {
    let first = cuts[0].min(data.len());
    let second = cuts[1].clamp(first, data.len());
    let mut scan = Scan::new(expected);
    let mut is_whole = false;
    for piece in [&data[..first], &data[first..second], &data[second..]] {
        is_whole = scan.feed(piece)?;
    }
    assert_eq!(scan.received, data.len());
    (is_whole && scan.spans.iter().all(|span| is_ended(data, *span))).then(|| scan.spans.clone())
}

/// Write the values one after the other, as they are and as base64.
fn check_answer(values: &[&[u8]]) {
    let put =
        |sink: &mut dyn FnMut(&[u8], bool)| values.iter().for_each(|value| (sink(value, false), sink(value, true)).1);
    let mut length = Length::default();
    put(&mut |value, raw| if raw { length.put_base64(value) } else { length.put(value) });
    let mut grown = Vec::new();
    put(&mut |value, raw| if raw { grown.put_base64(value) } else { grown.put(value) });
    let mut memory = vec![0; length.0];
    let mut room = Room::new(&mut memory);
    put(&mut |value, raw| if raw { room.put_base64(value) } else { room.put(value) });
    assert!(room.is_full());
    room.put(b"more than there is room for");
    assert_eq!(memory, grown);
    for value in values {
        let mut text = vec![0; base64_bytes(value)];
        write_base64(&mut text, value);
        assert_eq!(read_base64(&text), *value);
        let mut size = vec![];
        push_number(&mut size, value.len());
        assert_eq!(size, value.len().to_string().as_bytes());
    }
}

fn read_base64(text: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => panic!("{byte} is no digit"),
    };
    let mut value = vec![];
    for quad in text.chunks(4) {
        let known = quad.iter().take_while(|&&byte| byte != b'=').count();
        let bits =
            quad[..known].iter().fold(0u32, |bits, &byte| bits << 6 | u32::from(digit(byte))) << (6 * (4 - known));
        value.extend_from_slice(&bits.to_be_bytes()[1..known]);
    }
    value
}
