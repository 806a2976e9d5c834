//! What must hold of the builder's rows for any bytes: a JSON text, and a block of CSV.
#[path = "../../src/build/csv_splitter.rs"]
pub mod csv_splitter;
#[path = "../../src/build/json_text.rs"]
pub mod json_text;

use csv_splitter::{count_lines, Dialect, Found, Splitter};
use json_text::JsonText;
use serde_json::Value;

use crate::text;

/// Read a JSON text. Panics unless the result is canonical JSON that other readers understand in the same way.
pub fn check_json(text: &[u8]) -> bool {
    if std::str::from_utf8(text).is_err() {
        check_fields(text);
        return false;
    }
    check_fields(text);
    let (mut json, mut again) = (JsonText::default(), JsonText::default());
    let is_object = json.read_object(text).is_some();
    if is_object {
        check_members(&json, text);
        check_written(&json.out, text);
        assert_eq!((again.read_object(&json.out), &again.out), (Some(()), &json.out), "read again it is another");
    }
    if json.read_value(text).is_none() {
        return is_object;
    }
    check_written(&json.out, text);
    assert_eq!((again.read_value(&json.out), &again.out), (Some(()), &json.out), "read again it is another");
    true
}

/// Panics unless each field of the list of all fields is also found by its name.
fn check_fields(text: &[u8]) {
    let all = text::all_fields(text);
    let names: Vec<&[u8]> = all.iter().flatten().map(|(name, _)| &**name).collect();
    let selected = text::select_fields(text, &names);
    assert_eq!(selected.is_some(), all.is_some());
    let values = all.iter().flatten().map(|(_, value)| Some(value.clone()));
    assert!(values.eq(selected.unwrap_or_default()), "one by one others are found");
}

fn check_written(written: &[u8], text: &[u8]) {
    let value: Value = serde_json::from_slice(text).unwrap_or_else(|error| panic!("no JSON: {error}"));
    assert_eq!(serde_json::from_slice::<Value>(written).ok().as_ref(), Some(&value), "it says something else");
    assert!(written.iter().all(|&byte| byte >= 0x20), "a break or a control character stays");
}

fn check_members(json: &JsonText, text: &[u8]) {
    let Ok(Value::Object(expected)) = serde_json::from_slice::<Value>(text) else {
        panic!("no object");
    };
    assert_eq!(json.members.len(), expected.len(), "every name once");
    let fields = text::all_fields(text).unwrap_or_else(|| panic!("no fields"));
    assert_eq!(fields.len(), expected.values().filter(|value| !value.is_null()).count());
    for (name, text) in fields {
        match expected.get(std::str::from_utf8(&name).unwrap_or_default()) {
            Some(Value::String(expected)) => assert_eq!(&*text, expected.as_bytes()),
            expected => assert_eq!(serde_json::from_slice::<Value>(&text).ok().as_ref(), expected),
        }
    }
    for member in &json.members {
        let name = json.part(&member.name);
        assert_eq!(json.find(name).map(|found| &found.value), Some(&member.value));
        let name: String = serde_json::from_slice(name).unwrap_or_else(|error| panic!("no name: {error}"));
        assert_eq!(serde_json::from_slice::<Value>(json.part(&member.value)).ok().as_ref(), expected.get(&name));
    }
}

/// What a file holds: its rows, and whether its end is valid.
type Rows = (Vec<Vec<Vec<u8>>>, bool);

/// Split CSV. Panics unless a reader of single bytes would split it in the same way, whole and in two blocks.
pub fn check_csv(data: &[u8], dialect: Dialect, cut: usize) -> bool {
    let expected = split_by_bytes(data, dialect);
    let whole = split(data, dialect, data.len());
    assert_eq!(whole, expected);
    assert_eq!(split(data, dialect, cut.min(data.len())), whole, "in two blocks it is another");
    assert_eq!(count_lines(data), count_by_bytes(data));
    whole.1
}

/// Read the first block until it is cut or ends, and then the rest.
fn split(data: &[u8], dialect: Dialect, cut: usize) -> Rows {
    let (mut splitter, mut rows, mut at) = (Splitter::new(dialect, vec![]), vec![], 0);
    for (block, is_last) in [(&data[..cut], cut == data.len()), (data, true)] {
        while at < block.len() {
            match splitter.next_row(block, at, is_last) {
                Found::Row(end) => {
                    rows.push((0..splitter.width()).map(|number| splitter.field(block, number).to_vec()).collect());
                    assert!(end > at && end <= block.len());
                    at = end;
                }
                Found::Blank(end) => at = end,
                Found::Cut => {
                    assert!(!is_last);
                    break;
                }
                Found::OpenQuote => {
                    assert!(is_last);
                    return (rows, false);
                }
                Found::Broken => return (rows, false),
            }
        }
    }
    (rows, true)
}

/// Where `split_by_bytes` is in a row.
#[derive(PartialEq)]
enum State {
    RowStart,
    FieldStart,
    Plain,
    Quoted,
    Quote,
    QuotedEscape,
    PlainEscape,
    EscapedBreak,
}

/// The definition: Python's `csv`, strict, and escapes, state by state.
fn split_by_bytes(data: &[u8], dialect: Dialect) -> Rows {
    let escapes = |byte: u8| Some(byte) == dialect.escape;
    let is_escapable = |byte: u8| {
        byte == dialect.delimiter || Some(byte) == dialect.quote || escapes(byte) || byte == b'\n' || byte == b'\r'
    };
    let (mut rows, mut row, mut field, mut state) = (vec![], vec![], vec![], State::RowStart);
    for (at, &byte) in data.iter().enumerate() {
        let is_break = byte == b'\n' || byte == b'\r';
        if byte == b'\n' && at > 0 && data[at - 1] == b'\r' && state == State::RowStart {
            continue;
        }
        state = match state {
            State::QuotedEscape | State::PlainEscape if !is_escapable(byte) => return (rows, false),
            State::QuotedEscape => {
                field.push(byte);
                State::Quoted
            }
            State::PlainEscape => {
                field.push(byte);
                if is_break {
                    State::EscapedBreak
                } else {
                    State::Plain
                }
            }
            State::EscapedBreak if byte == b'\n' && data[at - 1] == b'\r' => {
                field.push(byte);
                State::EscapedBreak
            }
            State::Quoted if escapes(byte) => State::QuotedEscape,
            State::RowStart | State::FieldStart | State::Plain | State::EscapedBreak
                if escapes(byte) && dialect.quote.is_none() =>
            {
                State::PlainEscape
            }
            State::Plain if Some(byte) == dialect.quote && escapes(data[at - 1]) => return (rows, false),
            State::Quoted if Some(byte) == dialect.quote => State::Quote,
            State::Quote if Some(byte) == dialect.quote => {
                field.push(byte);
                State::Quoted
            }
            State::Quoted => {
                field.push(byte);
                State::Quoted
            }
            State::RowStart if is_break => State::RowStart,
            _ if is_break => {
                row.push(std::mem::take(&mut field));
                rows.push(std::mem::take(&mut row));
                State::RowStart
            }
            _ if byte == dialect.delimiter => {
                row.push(std::mem::take(&mut field));
                State::FieldStart
            }
            State::RowStart | State::FieldStart if Some(byte) == dialect.quote => State::Quoted,
            State::Quote => return (rows, false),
            _ => {
                field.push(byte);
                State::Plain
            }
        };
    }
    if matches!(state, State::Quoted | State::QuotedEscape | State::PlainEscape | State::EscapedBreak) {
        return (rows, false);
    }
    if state != State::RowStart {
        row.push(field);
        rows.push(row);
    }
    (rows, true)
}

fn count_by_bytes(text: &[u8]) -> u64 {
    let (mut lines, mut is_open, mut last) = (0, false, b' ');
    for &byte in text {
        let is_break = byte == b'\n' || byte == b'\r';
        lines += u64::from(is_break && !(last == b'\r' && byte == b'\n'));
        (is_open, last) = (!is_break, byte);
    }
    lines + u64::from(is_open)
}
