//! What a file says of itself: its two meta pages, the newer of which counts, and the databases.
//!
//! ```text
//! meta      16 magic u32 · 20 version u32 · 24 address u64 · 32 bytes of the map u64
//!           40 the database of free pages · 88 the database of databases · 136 last page u64 · 144 transaction u64
//! database  0 bytes of a page u32 (of that of free pages) · 4 flags u16 · 6 depth u16
//!           8 branches u64 · 16 leaves u64 · 24 overflow pages u64 · 32 records u64 · 40 root u64
//! ```
use super::map::{Page, PAGE_BYTES};
use super::page::{u16_at, u32_at, u64_at, Kind, NO_PAGE};
use super::OpenError;

const MAGIC: u32 = 0xBEEF_C0DE;
const DATA_VERSION: u32 = 1;
const DATABASE_BYTES: usize = 48;
/// LMDB's own limit, the size of its cursors' stacks.
const MAX_DEPTH: u16 = 32;

/// One database: a tree of pages whose leaves are all `depth` pages below, the root counted.
#[derive(Clone, Copy)]
pub struct Tree {
    pub root: u64,
    pub depth: u16,
    pub records: u64,
}

/// The newer of the two meta pages, by its transaction.
pub struct Meta {
    /// The database that has the descriptions of the others by their names.
    pub databases: Tree,
    /// How many pages the file must have.
    pub pages: usize,
    transaction: u64,
}

impl Meta {
    /// Read both. Refuses what is not of the format, as LMDB does, and what is of a format that is not known here.
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
    /// What the `name`d database says of itself.
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

fn expect<T: PartialEq + std::fmt::Display>(
    what: impl std::fmt::Display,
    found: T,
    expected: T,
) -> Result<(), OpenError> {
    if found == expected {
        return Ok(());
    }
    Err(refused(format_args!("{what} {expected}"), found))
}

pub fn refused(expected: impl std::fmt::Display, found: impl std::fmt::Display) -> OpenError {
    OpenError::Refused(format!("expected {expected}, found {found}"))
}
