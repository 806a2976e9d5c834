//! What a page says: its header, its nodes and what they hold; and the two meta pages, of which the newer is used.
//!
//! Every number is checked before it is used. The format is LMDB's data version 1 on 64 bits, little endian:
//!
//! ```text
//! page      0 number u64 · 8 pad u16 · 10 flags u16 · 12 lower u16 · 14 upper u16 · 16 offsets of nodes u16 …
//! overflow  0 number u64 · 8 pad u16 · 10 flags u16 · 12 pages u32 · 16 the value, to its end on the next pages
//! leaf      0 size u32 · 4 flags u16 · 6 size of key u16 · 8 key · value, or the number of its first overflow page u64
//! branch    0 number of page u48 · 6 size of key u16 · 8 key (the first node's is empty: less than all)
//! meta      16 magic u32 · 20 version u32 · 24 address u64 · 32 bytes of the map u64
//!           40 the database of free pages · 88 the database of databases · 136 last page u64 · 144 transaction u64
//! database  0 bytes of a page u32 (only for free pages) · 4 flags u16 · 6 depth u16
//!           8 branches u64 · 16 leaves u64 · 24 overflow pages u64 · 32 records u64 · 40 root u64
//! ```
use std::fmt::Display;

use super::{Damage, OpenError};
use crate::system::{Page, PAGE_BYTES};

const PAGE_HEADER: usize = 16;
/// The size of the header before a node's key.
pub const NODE_HEADER: usize = 8;
const OVERFLOWS: u16 = 1;
const SUB_DATABASE: u16 = 2;
const LAST_NODE: u16 = (PAGE_BYTES - NODE_HEADER) as u16;
/// The root of an empty tree.
pub const NO_PAGE: u64 = u64::MAX;

/// The kind of a page, by its flags.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    Branch = 1,
    Leaf = 2,
    Overflow = 4,
    Meta = 8,
}

#[derive(Clone, Copy)]
pub enum Place<'a> {
    Leaf(&'a [u8]),
    /// On overflow pages from `number` on, the first of which has a header.
    Overflow {
        number: u64,
        bytes: usize,
    },
}

/// The pages of a file that its newest transaction knows.
#[derive(Clone, Copy)]
pub struct Pages<'a>(pub &'a [Page]);

impl<'a> Pages<'a> {
    /// The page of this number, unchecked.
    #[inline(always)]
    pub fn page(self, number: u64) -> Result<&'a Page, Damage> {
        let page = usize::try_from(number).ok().and_then(|number| self.0.get(number));
        page.ok_or(Damage("a page's number is beyond the last page"))
    }

    /// The value of `bytes` bytes on the overflow pages from `number` on.
    pub fn overflow(self, number: u64, bytes: usize) -> Result<&'a [u8], Damage> {
        let page = self.page(number)?;
        check_header(page, number, Kind::Overflow)?;
        let needed = Self::count_overflow(bytes);
        if (u32_at(page, 12) as usize) < needed {
            return Err(Damage("a value has more bytes than its overflow pages"));
        }
        let pages = usize::try_from(number).ok().and_then(|first| self.0.get(first..)?.get(..needed));
        let value = pages.and_then(|pages| pages.as_flattened().get(PAGE_HEADER..PAGE_HEADER + bytes));
        value.ok_or(Damage("overflow pages reach beyond the last page"))
    }

    /// The number of overflow pages of a value of `bytes` bytes.
    pub fn count_overflow(bytes: usize) -> usize {
        (PAGE_HEADER + bytes).div_ceil(PAGE_BYTES)
    }
}

/// The number of nodes of a branch or leaf, which is never 0.
#[inline(always)]
pub fn count_nodes(page: &Page, number: u64, kind: Kind) -> Result<u16, Damage> {
    check_header(page, number, kind)?;
    let lower = u16_at(page, 12);
    if !(PAGE_HEADER + 2..=PAGE_BYTES).contains(&(lower as usize)) {
        return Err(Damage("a page has no nodes, or more than it can have"));
    }
    Ok((lower - PAGE_HEADER as u16) / 2)
}

#[inline(always)]
fn check_header(page: &Page, number: u64, kind: Kind) -> Result<(), Damage> {
    if u64_at(page, 0) != number {
        return Err(Damage("a page has another number than its place"));
    }
    if u16_at(page, 10) != kind as u16 {
        return Err(Damage(match kind {
            Kind::Branch => "a page is not the branch that its depth makes it",
            Kind::Leaf => "a page is not the leaf that its depth makes it",
            Kind::Overflow => "a page is not the overflow page that a leaf says it is",
            Kind::Meta => "a page is not the meta page that its place makes it",
        }));
    }
    Ok(())
}

/// The offset of node `index`, which is below `count_nodes`: at least a node's header before the page's end.
#[inline(always)]
pub fn node_offset(page: &Page, index: u16) -> Result<u16, Damage> {
    let slot = PAGE_HEADER + 2 * index as usize;
    match page.get(slot..slot + 2) {
        Some(&[low, high]) if u16::from_le_bytes([low, high]) <= LAST_NODE => Ok(u16::from_le_bytes([low, high])),
        _ => Err(Damage("a node begins beyond its page's end")),
    }
}

/// The key of the node at `offset`, a result of `node_offset`.
#[inline(always)]
pub fn node_key(page: &Page, offset: u16) -> Result<&[u8], Damage> {
    let start = offset as usize + NODE_HEADER;
    let key = match page.get(start - 2..start) {
        Some(&[low, high]) => page.get(start..start + u16::from_le_bytes([low, high]) as usize),
        _ => None,
    };
    key.ok_or(Damage("a key reaches beyond its page's end"))
}

/// The page that the branch node at `offset` leads to.
#[inline(always)]
pub fn node_child(page: &Page, offset: u16) -> Result<u64, Damage> {
    let start = offset as usize;
    match page.get(start..start + 6) {
        Some(&[a, b, c, d, e, f]) => Ok(u64::from_le_bytes([a, b, c, d, e, f, 0, 0])),
        _ => Err(Damage("a node begins beyond its page's end")),
    }
}

/// Where the value of the leaf node at `offset` is.
#[inline(always)]
pub fn node_value(page: &Page, offset: u16) -> Result<Place<'_>, Damage> {
    place_value(page, offset, 0)
}

/// The description of a named database, which the leaf node at `offset` must hold.
pub fn node_database(page: &Page, offset: u16) -> Result<&[u8], Damage> {
    match place_value(page, offset, SUB_DATABASE)? {
        Place::Leaf(description) => Ok(description),
        _ => Err(Damage("a database's description is on overflow pages")),
    }
}

#[inline(always)]
fn place_value(page: &Page, offset: u16, expected: u16) -> Result<Place<'_>, Damage> {
    let node = offset as usize;
    let start = node + NODE_HEADER + node_key(page, offset)?.len();
    let Some(&[s0, s1, s2, s3, f0, f1, ..]) = page.get(node..start) else {
        return Err(Damage("a node begins beyond its page's end"));
    };
    let bytes = u32::from_le_bytes([s0, s1, s2, s3]) as usize;
    match u16::from_le_bytes([f0, f1]) ^ expected {
        0 => match page.get(start..start + bytes) {
            Some(value) => Ok(Place::Leaf(value)),
            None => Err(Damage("a value reaches beyond its page's end")),
        },
        OVERFLOWS => match page.get(start..).and_then(|rest| rest.first_chunk::<8>()) {
            Some(&number) => Ok(Place::Overflow { number: u64::from_le_bytes(number), bytes }),
            None => Err(Damage("the number of an overflow page reaches beyond its leaf's end")),
        },
        _ => Err(Damage("a node has flags that it cannot have here")),
    }
}

/// The bytes at `at` of a page or description; 0 beyond its end.
#[inline(always)]
fn bytes_at<const SIZE: usize>(bytes: &[u8], at: usize) -> [u8; SIZE] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; SIZE])
}

#[inline(always)]
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes_at(bytes, at))
}

#[inline(always)]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, at))
}

#[inline(always)]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, at))
}

const MAGIC: u32 = 0xBEEF_C0DE;
const DATA_VERSION: u32 = 1;
const DATABASE_BYTES: usize = 48;
/// LMDB's limit, the size of its cursors' stacks.
const MAX_DEPTH: u16 = 32;

/// A database: a tree of pages with `depth` levels, root and leaves included.
#[derive(Clone, Copy)]
pub struct Tree {
    pub root: u64,
    pub depth: u16,
    pub records: u64,
}

/// A meta page. The one with the higher transaction number counts.
pub struct Meta {
    /// The database of the other databases' descriptions, by name.
    pub databases: Tree,
    /// The number of pages that the file must have.
    pub pages: usize,
    transaction: u64,
}

impl Meta {
    /// Read both meta pages and return the newer one. Refuses what LMDB refuses, and unknown formats.
    pub fn newest(pages: &[Page]) -> Result<Meta, OpenError> {
        let [first, second, ..] = pages else {
            return Err(refused("two meta pages", format_args!("{} pages of {PAGE_BYTES} bytes", pages.len())));
        };
        let (first, second) = (Meta::read(first)?, Meta::read(second)?);
        let newest = if second.transaction > first.transaction { second } else { first };
        if newest.pages > pages.len() {
            return Err(refused(format_args!("{} pages", newest.pages), format_args!("a file of {}", pages.len())));
        }
        Ok(newest)
    }

    fn read(page: &Page) -> Result<Meta, OpenError> {
        expect("a meta page", u16_at(page, 10), Kind::Meta as u16)?;
        expect("LMDB's magic number", u32_at(page, 16), MAGIC)?;
        expect("LMDB's data version", u32_at(page, 20), DATA_VERSION)?;
        expect("pages of bytes", u32_at(page, 40), PAGE_BYTES as u32)?;
        let databases = Tree::parse("the database of databases", &page[88..88 + DATABASE_BYTES])?;
        let pages = u64_at(page, 136).checked_add(1).and_then(|pages| usize::try_from(pages).ok());
        let pages = pages.ok_or_else(|| refused("the number of the last page", "one that is too large"))?;
        Ok(Meta { databases, pages, transaction: u64_at(page, 144) })
    }
}

impl Tree {
    /// Read the description of the database `name`.
    pub fn parse(name: &str, description: &[u8]) -> Result<Tree, OpenError> {
        expect(format_args!("bytes that describe {name}"), description.len(), DATABASE_BYTES)?;
        expect(format_args!("flags of {name}"), u16_at(description, 4), 0)?;
        let (depth, records, root) = (u16_at(description, 6), u64_at(description, 32), u64_at(description, 40));
        let is_empty = root == NO_PAGE;
        if depth > MAX_DEPTH || is_empty != (depth == 0) || is_empty != (records == 0) {
            let expected = format!("a sound description of {name}");
            return Err(refused(expected, format_args!("{records} records, depth {depth}, root {root}")));
        }
        Ok(Tree { root, depth, records })
    }
}

fn expect<T: PartialEq + Display>(what: impl Display, found: T, expected: T) -> Result<(), OpenError> {
    if found == expected {
        return Ok(());
    }
    Err(refused(format_args!("{what} {expected}"), found))
}

pub fn refused(expected: impl Display, found: impl Display) -> OpenError {
    OpenError::Refused(format!("expected {expected}, found {found}"))
}
