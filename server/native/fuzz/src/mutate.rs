//! `mutate SECONDS [START]`: random inputs, for so long. The inputs follow from START, which is printed.
use lookupdb_fuzz::damage::{load_seeds, Subject};
use lookupdb_fuzz::route::{check_body, check_reply};
use lookupdb_fuzz::rows::{check_csv, check_json, csv_splitter::Dialect};
use lookupdb_fuzz::values::Expander;
use lookupdb_fuzz::{check_file, check_requests, check_value, request, Outcome};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// xorshift64*.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn index(&mut self, end: usize) -> usize {
        (self.next() >> 33) as usize % end
    }

    /// Bytes of which many are extreme.
    fn byte(&mut self) -> u8 {
        match self.index(4) {
            0 => [0, 1, 2, 4, 8, 0x10, 0x7F, 0x80, 0xFF][self.index(9)],
            _ => self.next() as u8,
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().unwrap_or_else(|_| usage()));
    let seconds = arguments.next().unwrap_or_else(|| usage());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |age| age.as_nanos() as u64);
    let start = arguments.next().unwrap_or(now) | 1;
    println!("mutate {seconds} {start}");
    let subjects: Vec<Subject> =
        load_seeds().into_iter().map(|seed| Subject::new(seed).unwrap_or_else(|e| panic!("{e}"))).collect();
    let mut expanders: Vec<Expander> = subjects
        .iter()
        .map(|subject| Expander::new(&subject.seed.dictionary).unwrap_or_else(|e| panic!("{e}")))
        .collect();
    let mut chance = Chance(start);
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut files, mut values, mut refused, mut damaged, mut requests) = (0u64, 0u64, 0u64, 0u64, 0u64);
    let (mut batches, mut sound, mut rows) = (0u64, 0u64, 0u64);
    while Instant::now() < end {
        let index = chance.index(subjects.len());
        let subject = &subjects[index];
        let input: Vec<u8> = (0..10 * (1 + chance.index(6))).map(|_| chance.byte()).collect();
        let outcome = catch_unwind(|| subject.with_damage(&input, |path| check_file(path, &subject.seed.keys)));
        match outcome {
            Ok(Ok(outcome)) => {
                files += 1;
                refused += (outcome == Outcome::Refused) as u64;
                damaged += (outcome == Outcome::Damaged) as u64;
            }
            _ => report(&format!("seed {index}, changes {input:02x?}")),
        }
        for _ in 0..if subject.seed.values.is_empty() { 0 } else { 8 } {
            let mut stored = subject.seed.values[chance.index(subject.seed.values.len())].clone();
            mutate(&mut chance, &mut stored);
            let expander = &mut expanders[index];
            if catch_unwind(AssertUnwindSafe(|| check_value(expander, &stored))).is_err() {
                report(&format!("seed {index}, stored value {stored:02x?}"));
            }
            values += 1;
        }
        for _ in 0..8 {
            let (data, cut) = make_requests(&mut chance);
            if catch_unwind(|| check_requests(&data, cut)).is_err() {
                report(&format!("requests {data:02x?}, cut at {cut}"));
            }
            requests += 1;
        }
        for _ in 0..8 {
            sound += u64::from(try_body(&mut chance)) + u64::from(try_reply(&mut chance));
            batches += 2;
            try_csv(&mut chance);
            try_json(&mut chance);
            rows += 2;
        }
    }
    println!(
        "{files} files ({refused} refused, {damaged} with damage), {values} values, {requests} pieces of requests, \
         {batches} bodies and replies of batches ({sound} whole), {rows} pieces of CSV and JSON: every promise was kept"
    );
}

/// Consecutive lookups, changed here and there, and where to cut them.
fn make_requests(chance: &mut Chance) -> (Vec<u8>, usize) {
    let mut data = vec![];
    for _ in 0..1 + chance.index(5) {
        let keys: Vec<Vec<u8>> =
            (0..1 + chance.index(4)).map(|_| (0..chance.index(14)).map(|_| chance.byte()).collect()).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut lookup = if chance.index(2) == 0 { request(b"get", &keys[..1]) } else { request(b"MGET", &keys) };
        mutate(chance, &mut lookup);
        data.extend(lookup);
    }
    let cut = chance.index(data.len() + 1);
    (data, cut)
}

/// A batch's body, changed here and there, or as it is.
fn try_body(chance: &mut Chance) -> bool {
    let keys: Vec<String> = (0..1 + chance.index(5))
        .map(|_| (0..chance.index(14)).map(|_| char::from(b' ' + chance.index(96) as u8)).collect::<String>())
        .collect();
    let keys = keys.iter().map(|key| format!("\"{}\"", key.replace(['"', '\\'], "\\u0022"))).collect::<Vec<_>>();
    let keys = format!("\"keys\" : [{}]", keys.join(", "));
    let mut body = match chance.index(3) {
        0 => format!("{{{keys}}}"),
        1 => format!("{{{keys},\"partial\":true}} \n"),
        _ => format!("{{\"partial\": false, {keys}}}"),
    }
    .into_bytes();
    let is_changed = chance.index(2) == 0;
    if is_changed {
        mutate(chance, &mut body);
    }
    match catch_unwind(|| check_body(&body, 5)) {
        Ok(is_body) if is_body || is_changed => is_body,
        _ => report(&format!("body {body:02x?}")),
    }
}

/// A reply to an MGET, changed here and there, or as it is.
fn try_reply(chance: &mut Chance) -> bool {
    let expected = chance.index(6);
    let mut reply = format!("*{expected}\r\n").into_bytes();
    for _ in 0..expected {
        let value: Vec<u8> = (0..chance.index(14)).map(|_| chance.byte()).collect();
        match chance.index(4) {
            0 => reply.extend(b"$-1\r\n"),
            _ => reply.extend([format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat()),
        }
    }
    let is_changed = chance.index(2) == 0;
    if is_changed {
        mutate(chance, &mut reply);
    }
    let cuts = [chance.index(reply.len() + 1), chance.index(reply.len() + 1)];
    match catch_unwind(|| check_reply(&reply, expected, cuts)) {
        Ok(is_reply) if is_reply || is_changed => is_reply,
        _ => report(&format!("reply {reply:02x?} to {expected} keys, cut at {cuts:?}")),
    }
}

/// Bytes of which most mean something in CSV, as files of a dialect.
fn try_csv(chance: &mut Chance) {
    let delimiter = b",\t; "[chance.index(4)];
    let quote = (chance.index(3) > 0).then_some(b'"');
    let escape = (chance.index(2) > 0).then_some(b'\\');
    let alphabet = [delimiter, b'"', b'\n', b'\r', b'a', delimiter, b'"', b'\\'];
    let mut data: Vec<u8> = (0..chance.index(40)).map(|_| alphabet[chance.index(8)]).collect();
    mutate(chance, &mut data);
    let cut = chance.index(data.len() + 1);
    if catch_unwind(|| check_csv(&data, Dialect { delimiter, quote, escape }, cut)).is_err() {
        report(&format!("CSV {data:02x?} with {delimiter:02x}, {quote:02x?} and {escape:02x?}, cut at {cut}"));
    }
}

/// A JSON text, changed here and there, or as it is.
fn try_json(chance: &mut Chance) {
    let mut text = make_json(chance, 0).into_bytes();
    let is_changed = chance.index(2) == 0;
    if is_changed {
        mutate(chance, &mut text);
    }
    match catch_unwind(|| check_json(&text)) {
        Ok(is_json) if is_json || is_changed => {}
        _ => report(&format!("JSON {text:02x?}")),
    }
}

fn make_json(chance: &mut Chance, depth: usize) -> String {
    let many = chance.index(4);
    match chance.index(if depth < 4 { 8 } else { 6 }) {
        0 => "null".into(),
        1 => "true".into(),
        2 => format!("-{}.{}e-{}", chance.index(10), chance.index(1000), chance.index(400)),
        3 => chance.next().to_string(),
        4 => "\"\\u00e4\\ud83d\\ude00\\/\\b\\\\\"".into(),
        5 => format!("\"{}\"", "plain ü ".repeat(many)),
        6 => format!("[ {}]", (0..many).map(|_| make_json(chance, depth + 1)).collect::<Vec<_>>().join(" ,")),
        _ => {
            let members = (0..many).map(|name| format!("\"{name}\\n\" :\t{}", make_json(chance, depth + 1)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(",\r\n"))
        }
    }
}

fn mutate(chance: &mut Chance, stored: &mut Vec<u8>) {
    for _ in 0..chance.index(4) {
        let reach = stored.len().min([8, 24, usize::MAX][chance.index(3)]);
        match chance.index(8) {
            _ if stored.is_empty() => stored.push(chance.byte()),
            0 => stored.truncate(chance.index(stored.len())),
            1 => stored.push(chance.byte()),
            2 => drop(stored.remove(chance.index(reach))),
            3 => stored.insert(chance.index(reach), chance.byte()),
            _ => {
                let place = chance.index(reach);
                stored[place] = chance.byte();
            }
        }
    }
}

fn report(what: &str) -> ! {
    eprintln!("a promise is broken: {what}");
    std::process::exit(1)
}

fn usage() -> ! {
    eprintln!("usage: mutate SECONDS [START]");
    std::process::exit(2)
}
