//! What is read here, what is left to Python, and what is only a part.
use super::*;

fn read(data: &[u8]) -> (Next, Vec<&[u8]>) {
    read_some(data, usize::MAX)
}

fn read_some(data: &[u8], most: usize) -> (Next, Vec<&[u8]>) {
    let mut keys = Vec::new();
    let next = next_lookups(data, 0, most, &mut keys);
    (next, keys.into_iter().map(|key| key.of(data)).collect())
}

const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n";
const MGET: &[u8] = b"*3\r\n$4\r\nmget\r\n$2\r\n\r\n\r\n$1\r\nb\r\n";

#[test]
fn gets_are_read_together_and_an_mget_alone() {
    assert_eq!(read(GET), (Next::Gets(20), vec![&b"a"[..]]));
    assert_eq!(read(MGET), (Next::Mget(MGET.len()), vec![&b"\r\n"[..], b"b"]));
    let mixed = [GET, GET, MGET].concat();
    assert_eq!(read(&mixed), (Next::Gets(40), vec![&b"a"[..], b"a"]));
    assert_eq!(read_some(&mixed, 1), (Next::Gets(20), vec![&b"a"[..]]));
    assert_eq!(read_some(MGET, 1), (Next::Mget(MGET.len()), vec![&b"\r\n"[..], b"b"]));
}

#[test]
fn every_beginning_of_a_lookup_is_a_part() {
    for whole in [GET, MGET] {
        for end in 1..whole.len() {
            assert_eq!(read(&whole[..end]), (Next::Part, vec![]), "{end}");
        }
    }
    let behind = [GET, &MGET[..20]].concat();
    assert_eq!(read(&behind), (Next::Gets(20), vec![&b"a"[..]]));
}

#[test]
fn what_is_no_lookup_as_libraries_write_it_is_left() {
    let others: [&[u8]; 14] = [
        b"",
        b"PING\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"*1\r\n$4\r\nMGET\r\n",
        b"*3\r\n$3\r\nGET\r\n$1\r\na\r\n$1\r\nb\r\n",
        b"*2\r\n$3\r\nSET\r\n$1\r\na\r\n",
        b"*2\r\n$3\r\nGET\r\n$01\r\na\r\n",
        b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n",
        b"*2\r\n$3\r\nGET\r\n$512\r\n",
        b"*2\r\n$3\r\nGET\r\n$1\r\nab\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*0\r\n$4\r\nP\n",
        b"*99999999999999999999999\r\n",
    ];
    for data in others {
        assert_eq!(read(data), (Next::Other, vec![]), "{:?}", String::from_utf8_lossy(data));
    }
}

#[test]
fn a_lone_get_is_one_and_nothing_else() {
    assert_eq!(lone_get(GET).map(|key| key.of(GET)), Some(&b"a"[..]));
    assert_eq!(lone_get(&[GET, GET].concat()), None);
    assert_eq!(lone_get(&GET[..19]), None);
    assert_eq!(lone_get(b""), None);
    assert_eq!(lone_get(MGET), None);
}
