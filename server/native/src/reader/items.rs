//! All records in key order. Damage ends it, and so does a loop between pages: keys must grow.
use super::map::Page;
use super::meta::Tree;
use super::page::{count_nodes, node_child, node_key, node_offset, node_value, Kind, Pages, Place};
use super::Damage;

/// A key and its stored value.
pub type Item<'a> = (&'a [u8], &'a [u8]);

/// Where in a tree the next record is.
pub struct Cursor {
    tree: Tree,
    /// From the root down: a page, and its node that comes next.
    path: Vec<(u64, u16)>,
    last_key: Vec<u8>,
    seen: u64,
    has_ended: bool,
}

impl Cursor {
    /// Before the first record.
    pub fn new(tree: Tree) -> Cursor {
        let path = if tree.depth == 0 { vec![] } else { vec![(tree.root, 0)] };
        Cursor { tree, path, last_key: vec![], seen: 0, has_ended: false }
    }

    /// The next record. Behind the last, and behind damage, None.
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
