//! The fields of a value: the members of its JSON object. What lies within a member's value is skipped, not parsed.
use std::borrow::Cow;
use std::collections::HashMap;

use crate::json_string::unescape;

/// What a name or a value answers.
pub type Text<'a> = Cow<'a, [u8]>;

/// Call `each` with every member's name, within quotes, and its value, both as written. None if `text` is no object.
pub fn each_member<'a>(text: &'a [u8], mut each: impl FnMut(&'a [u8], &'a [u8])) -> Option<()> {
    let mut rest = skip_space(skip_space(text).strip_prefix(b"{")?);
    if let Some(end) = rest.strip_prefix(b"}") {
        return skip_space(end).is_empty().then_some(());
    }
    loop {
        let (name, behind) = rest.split_at_checked(string_size(rest)?)?;
        rest = skip_space(skip_space(behind).strip_prefix(b":")?);
        let (value, behind) = rest.split_at_checked(value_size(rest)?)?;
        each(name, value);
        rest = match skip_space(behind).split_first()? {
            (b',', behind) => skip_space(behind),
            (b'}', behind) => return skip_space(behind).is_empty().then_some(()),
            _ => return None,
        }
    }
}

/// The values of the fields called `names`, as `field_text` has them, None for one that is missing. None if `text` is no
/// object.
pub fn select<'a>(text: &'a [u8], names: &[&[u8]]) -> Option<Vec<Option<Text<'a>>>> {
    let places: HashMap<&[u8], usize> = names.iter().copied().zip(0..).collect();
    let mut values: Vec<&[u8]> = vec![NULL; names.len()];
    each_member(text, |name, value| {
        if let Some(place) = places.get(&*field_text(name)).and_then(|&place| values.get_mut(place)) {
            *place = value;
        }
    })?;
    let value_of = |name: &&[u8]| values.get(*places.get(*name)?).filter(|&&value| value != NULL);
    Some(names.iter().map(|name| value_of(name).map(|value| field_text(value))).collect())
}

/// Every field's name and value, as `field_text` has them, in the order in which names come first.
pub fn all(text: &[u8]) -> Option<Vec<(Text<'_>, Text<'_>)>> {
    let mut places: HashMap<Text<'_>, usize> = HashMap::new();
    let mut members: Vec<(&[u8], &[u8])> = Vec::new();
    each_member(text, |name, value| {
        let place = *places.entry(field_text(name)).or_insert(members.len());
        match members.get_mut(place) {
            Some(member) => member.1 = value, // the last one counts
            None => members.push((name, value)),
        }
    })?;
    let fields = members.into_iter().filter(|(_, value)| *value != NULL);
    Some(fields.map(|(name, value)| (field_text(name), field_text(value))).collect())
}

/// A member that is no field.
const NULL: &[u8] = b"null";

/// The text that a string stands for; the bytes of any other value as they are, and of a string that stands for none.
fn field_text(value: &[u8]) -> Text<'_> {
    let Some(inner) = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")) else {
        return Cow::Borrowed(value);
    };
    if memchr::memchr(b'\\', inner).is_none() {
        return Cow::Borrowed(inner);
    }
    let mut text = Vec::with_capacity(inner.len());
    unescape(value, &mut text).map_or(Cow::Borrowed(value), |()| Cow::Owned(text))
}

fn skip_space(text: &[u8]) -> &[u8] {
    let size = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
    text.get(size..).unwrap_or_default()
}

/// The size of the value at the start of `text`.
fn value_size(text: &[u8]) -> Option<usize> {
    match text.first()? {
        b'"' => string_size(text),
        b'{' | b'[' => nested_size(text),
        _ => {
            let is_plain = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
            Some(text.iter().take_while(is_plain).count()).filter(|&size| size > 0)
        }
    }
}

/// The size of the string at the start of `text`, with its quotes.
fn string_size(text: &[u8]) -> Option<usize> {
    if text.first()? != &b'"' {
        return None;
    }
    let mut at = 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
        if text.get(at) == Some(&b'"') {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// The size of the array or object at the start of `text`: to the bracket that ends as many as begin.
fn nested_size(text: &[u8]) -> Option<usize> {
    let (mut depth, mut at) = (0usize, 0);
    loop {
        match text.get(at)? {
            b'"' => {
                at += string_size(text.get(at..)?)?;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{all, select, Text};

    fn texts<'a>(fields: &'a [(Text<'a>, Text<'a>)]) -> Vec<(&'a [u8], &'a [u8])> {
        fields.iter().map(|(name, value)| (&**name, &**value)).collect()
    }

    #[test]
    fn members_as_written_and_text_as_text() {
        let text = br#" {"a":1.50,"b":"x\n\u00e9","c":[{"a":"]"},2],"d":null,"e\"":true,"a":-2e+5} "#;
        let fields = all(text);
        let expected: [(&[u8], &[u8]); 4] =
            [(b"a", b"-2e+5"), (b"b", "x\né".as_bytes()), (b"c", br#"[{"a":"]"},2]"#), (b"e\"", b"true")];
        assert_eq!(texts(&fields.unwrap_or_default()), expected);
        let selected = select(text, &[b"e\"", b"d", b"zz", b"a", b"a"]).unwrap_or_default();
        let selected: Vec<Option<&[u8]>> = selected.iter().map(Option::as_deref).collect();
        assert_eq!(selected, [Some(&b"true"[..]), None, None, Some(b"-2e+5"), Some(b"-2e+5")]);
    }

    #[test]
    fn no_objects() {
        for text in
            ["", "[]", "1", "{", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{\"a\":1} 2", "{\"a\":[\"}", "{\"a\":\"\\"]
        {
            assert!(all(text.as_bytes()).is_none(), "{text}");
        }
    }
}
