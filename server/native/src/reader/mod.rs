//! A read-only reader of shard files, which are files of LMDB (data version 1, 64 bits, little endian, pages of 4 KiB).
//!
//! It promises, whatever bytes a file has: `open` refuses what it does not know; a lookup returns the record's bytes,
//! nothing, or `Damage` for that key alone; nothing outside the map is read, nothing panics, and everything ends. It
//! reads only the pages on a key's path, so damage elsewhere stays unseen: the file's checksum proves the whole.
mod page;
mod walk;

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;

use crate::system::{Map, Page};
use page::{
    count_nodes, node_child, node_database, node_key, node_offset, node_value, refused, Kind, Meta, Pages, Place, Tree,
};
pub use walk::{find_across, prefetch_all, touch, TOGETHER};

/// The longest key that a record can have.
pub const MAX_KEY_BYTES: usize = 511;

/// What is wrong with a page or node on a key's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage(pub &'static str);

/// The stored value of a key; None if no record has it.
pub type Found<'a> = Result<Option<&'a [u8]>, Damage>;

/// Why a file cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    /// It cannot be opened or mapped.
    Io(io::Error),
    /// It is damaged or of an unknown format: what was expected and what was found. LMDB may be able to read it.
    Refused(String),
}

/// A shard file, mapped until it is dropped.
pub struct ShardFile {
    map: Map,
    /// The number of pages that the newest transaction knows.
    pages: usize,
    records: Tree,
    meta: Tree,
}

impl ShardFile {
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

    /// The dictionary of compressed values; empty if there is none.
    pub fn dictionary(&self) -> &[u8] {
        self.describe(b"dictionary").ok().flatten().unwrap_or_default()
    }

    /// The value stored under `key`; None for a key that no record can have, empty or longer than 511 bytes.
    pub fn find<'a>(&'a self, key: &[u8]) -> Found<'a> {
        walk::find(self.pages(), &self.records, key)
    }

    /// Replace `found` by the results of `find` for each of `keys`. This takes much less time than one key at a time.
    pub fn find_many<'a>(&'a self, keys: &[&[u8]], found: &mut Vec<Found<'a>>) {
        found.clear();
        walk::find_many(self.pages(), &self.records, keys, found);
    }

    /// Read all pages that `find_many` needs for `keys` from disk, and wait for them. Returns their number.
    pub fn warm(&self, keys: &[&[u8]]) -> usize {
        walk::warm(&self.map, self.pages(), &self.records, keys)
    }

    /// The metadata of the file under `name`, None if there is none.
    pub fn describe(&self, name: &[u8]) -> Found<'_> {
        walk::find(self.pages(), &self.meta, name)
    }

    /// The number of records according to the file.
    pub fn records(&self) -> u64 {
        self.records.records
    }

    /// Every key with its stored value, in key order. After damage there are no more items.
    pub fn items(&self) -> impl Iterator<Item = Result<Item<'_>, Damage>> {
        let mut cursor = self.cursor();
        std::iter::from_fn(move || cursor.next(self.pages()))
    }

    /// The same as `items` for callers that cannot borrow the file: pass it to `next_item`.
    pub fn cursor(&self) -> Cursor {
        Cursor::new(self.records)
    }

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
        refused("a sound file", damage.0)
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

/// A key and its stored value.
pub type Item<'a> = (&'a [u8], &'a [u8]);

/// Where the next record of a tree is. Keys must grow, so a loop between pages is damage.
pub struct Cursor {
    tree: Tree,
    /// The path from the root: each page, and the index of its next node.
    path: Vec<(u64, u16)>,
    last_key: Vec<u8>,
    seen: u64,
    has_ended: bool,
}

impl Cursor {
    /// A cursor before the first record.
    pub fn new(tree: Tree) -> Cursor {
        let path = if tree.depth == 0 { vec![] } else { vec![(tree.root, 0)] };
        Cursor { tree, path, last_key: vec![], seen: 0, has_ended: false }
    }

    /// The next record; None after the last one, and after damage.
    pub fn next<'a>(&mut self, pages: Pages<'a>) -> Option<Result<Item<'a>, Damage>> {
        if self.has_ended {
            return None;
        }
        let next = self.step(pages).transpose();
        self.has_ended = !matches!(next, Some(Ok(_)));
        next
    }

    fn step<'a>(&mut self, pages: Pages<'a>) -> Result<Option<Item<'a>>, Damage> {
        while let Some(&(number, index)) = self.path.last() {
            let page = pages.page(number)?;
            let is_leaf = self.path.len() == self.tree.depth as usize;
            if index == count_nodes(page, number, if is_leaf { Kind::Leaf } else { Kind::Branch })? {
                self.path.pop();
                continue;
            }
            if let Some(top) = self.path.last_mut() {
                top.1 += 1;
            }
            let offset = node_offset(page, index)?;
            if is_leaf {
                return self.record(pages, page, offset).map(Some);
            }
            self.path.push((node_child(page, offset)?, 0));
        }
        if self.seen != self.tree.records {
            return Err(Damage("a database has fewer records than it says"));
        }
        Ok(None)
    }

    fn record<'a>(&mut self, pages: Pages<'a>, page: &'a Page, offset: u16) -> Result<Item<'a>, Damage> {
        let key = node_key(page, offset)?;
        if key <= self.last_key.as_slice() {
            return Err(Damage("keys are not in order"));
        }
        self.seen += 1;
        if self.seen > self.tree.records {
            return Err(Damage("a database has more records than it says"));
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        let value = match node_value(page, offset)? {
            Place::Leaf(value) => value,
            Place::Overflow { number, bytes } => pages.overflow(number, bytes)?,
        };
        Ok((key, value))
    }
}
