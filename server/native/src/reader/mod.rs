//! A read-only reader of shard files, which are files of LMDB (data version 1, 64 bits, little endian, pages of 4 KiB).
//!
//! What it promises, whatever bytes a file has: `open` refuses what it does not know; a lookup gives the record's bytes,
//! nothing, or `Damage` for that key alone; nothing outside the map is read, nothing panics, and everything ends. Only
//! what lies on a key's way is looked at, so damage elsewhere stays unseen: the checksum of a file proves the whole.
mod across;
mod items;
mod map;
mod meta;
mod page;
mod walk;
mod warm;

pub use across::{find_across, prefetch_all, touch};
pub use items::{Cursor, Item};
use map::Map;
use meta::{refused, Meta, Tree};
use page::{node_database, Pages};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;

/// What was expected, and is not so, of what lies on a key's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage(pub &'static str);

/// The stored value of a key, None if there is no such record.
pub type Found<'a> = Result<Option<&'a [u8]>, Damage>;

/// Why a file cannot be read here.
#[derive(Debug)]
pub enum OpenError {
    /// It cannot be opened or mapped.
    Io(io::Error),
    /// It is damaged, or of a format that is not known here: what was expected, and what found. LMDB may know it.
    Refused(String),
}

/// A shard file, mapped until it is dropped.
pub struct ShardFile {
    map: Map,
    /// How many of the map's pages the newest transaction knows.
    pages: usize,
    records: Tree,
    meta: Tree,
}

impl ShardFile {
    /// Open the file and find its databases.
    pub fn open(path: &Path) -> Result<ShardFile, OpenError> {
        let map = Map::new(&File::open(path)?)?;
        let newest = Meta::newest(map.pages())?;
        let pages = Pages(&map.pages()[..newest.pages]);
        let records = find_database(pages, &newest.databases, "records")?;
        let meta = find_database(pages, &newest.databases, "meta")?;
        let file = ShardFile { map, pages: newest.pages, records, meta };
        walk::find(file.pages(), &file.meta, b"dictionary")?;
        Ok(file)
    }

    /// What values are compressed with; empty if there is none.
    pub fn dictionary(&self) -> &[u8] {
        self.describe(b"dictionary").ok().flatten().unwrap_or_default()
    }

    /// The value stored under `key`. A key that no record can have, empty or of more than 511 bytes, has none.
    pub fn find<'a>(&'a self, key: &[u8]) -> Found<'a> {
        walk::find(self.pages(), &self.records, key)
    }

    /// Put what `find` returns for each of `keys` into `found`, instead of what is there. Many keys take much less time
    /// than one at a time.
    pub fn find_many<'a>(&'a self, keys: &[&[u8]], found: &mut Vec<Found<'a>>) {
        found.clear();
        walk::find_many(self.pages(), &self.records, keys, found);
    }

    /// Read from disk, all together, what `find_many` needs for `keys`, and wait for it. Returns how many pages that is.
    pub fn warm(&self, keys: &[&[u8]]) -> usize {
        warm::warm(&self.map, self.pages(), &self.records, keys)
    }

    /// What the file says of itself under `name`, None if it does not.
    pub fn describe(&self, name: &[u8]) -> Found<'_> {
        walk::find(self.pages(), &self.meta, name)
    }

    /// How many records the file says it has.
    pub fn records(&self) -> u64 {
        self.records.records
    }

    /// Every key with its stored value, in key order. Damage is the last item.
    pub fn items(&self) -> impl Iterator<Item = Result<Item<'_>, Damage>> {
        let mut cursor = self.cursor();
        std::iter::from_fn(move || cursor.next(self.pages()))
    }

    /// As `items`, for whoever cannot borrow the file meanwhile: `next_item` takes it.
    pub fn cursor(&self) -> Cursor {
        Cursor::new(self.records)
    }

    /// The next item of a `cursor` of this file.
    pub fn next_item<'a>(&'a self, cursor: &mut Cursor) -> Option<Result<Item<'a>, Damage>> {
        cursor.next(self.pages())
    }

    #[inline(always)]
    fn pages(&self) -> Pages<'_> {
        Pages(self.map.pages().get(..self.pages).unwrap_or_default())
    }
}

fn find_database(pages: Pages, databases: &Tree, name: &str) -> Result<Tree, OpenError> {
    match walk::find_node(pages, databases, name.as_bytes())? {
        Some((page, offset)) => Tree::parse(name, node_database(page, offset)?),
        None => Err(refused(format_args!("a database {name:?}"), "none")),
    }
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> OpenError {
        OpenError::Io(error)
    }
}

impl From<Damage> for OpenError {
    fn from(damage: Damage) -> OpenError {
        refused("a sound file", damage)
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(self.0)
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            OpenError::Io(error) => error.fmt(formatter),
            OpenError::Refused(reason) => formatter.write_str(reason),
        }
    }
}
