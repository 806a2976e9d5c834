//! From the root to a key: one key alone, or up to 32 in lock step, so that their waits for memory overlap.
//!
//! A lookup mostly waits: for each page of its path, and for each key that is compared there. In lock step every key
//! takes one step (a comparison, a level) before any takes the next, and asks for the memory of its next step when it has
//! taken one. A walk takes as many levels as the tree has, whatever the pages say: it ends.
use super::map::{prefetch, Page};
use super::meta::Tree;
use super::page::{count_nodes, node_child, node_key, node_offset, node_value, Kind, Pages, Place};
use super::{Damage, Found};
use std::cmp::Ordering;

/// LMDB has no longer keys, and no empty one.
const MAX_KEY_BYTES: usize = 511;
/// How many keys take their steps together: enough to hide the waits, and few enough to stay in the nearest cache.
const TOGETHER: usize = 32;
/// Keys and values are short, and most lie on two cache lines: this is on the second.
const SECOND_LINE: usize = 43;

/// One key's way: the page that it is on, and where in it the key may still be.
#[derive(Clone, Copy)]
pub struct Walk<'a> {
    page: &'a Page,
    pub number: u64,
    /// Of the node to compare with next.
    offset: usize,
    /// The key is not before the nodes below `low`, and is before those from `high` on.
    low: usize,
    high: usize,
    is_exact: bool,
    pub damage: Option<Damage>,
}

impl<'a> Walk<'a> {
    pub fn new(page: &'a Page, number: u64) -> Walk<'a> {
        Walk { page, number, offset: 0, low: 0, high: 0, is_exact: false, damage: None }
    }

    /// Begin to search the page. The first node of a branch is less than all, and its key is not looked at.
    #[inline(always)]
    fn enter(&mut self, kind: Kind) -> Result<(), Damage> {
        self.high = count_nodes(self.page, self.number, kind)?;
        self.low = (kind == Kind::Branch) as usize;
        self.is_exact = false;
        self.aim()
    }

    #[inline(always)]
    fn is_searching(&self) -> bool {
        self.low < self.high
    }

    /// Choose the node to compare with next.
    #[inline(always)]
    fn aim(&mut self) -> Result<(), Damage> {
        if self.is_searching() {
            self.offset = node_offset(self.page, (self.low + self.high) / 2)?;
            prefetch(self.page, self.offset);
            prefetch(self.page, self.offset + SECOND_LINE);
        }
        Ok(())
    }

    /// Compare with the chosen node.
    #[inline(always)]
    fn compare(&mut self, key: &[u8]) -> Result<(), Damage> {
        let middle = (self.low + self.high) / 2;
        match key.cmp(node_key(self.page, self.offset)?) {
            Ordering::Less => self.high = middle,
            Ordering::Greater => self.low = middle + 1,
            Ordering::Equal => {
                (self.low, self.high, self.is_exact) = (middle + 1, middle + 1, true);
                return Ok(());
            }
        }
        self.aim()
    }

    /// Go to the page below, behind the last node that the key is not before.
    #[inline(always)]
    fn descend(&mut self, pages: Pages<'a>) -> Result<(), Damage> {
        let offset = node_offset(self.page, self.low.saturating_sub(1))?;
        self.number = node_child(self.page, offset)?;
        self.page = pages.page(self.number)?;
        Ok(())
    }

    /// Where the value is, if the leaf has the key.
    #[inline(always)]
    pub fn place(&self) -> Option<Place<'a>> {
        if let Some(damage) = self.damage {
            return Some(Place::Damaged(damage));
        }
        if !self.is_exact {
            return None;
        }
        Some(match self.low.checked_sub(1).map(|index| node_offset(self.page, index)) {
            Some(Ok(offset)) => node_value(self.page, offset),
            Some(Err(damage)) => Place::Damaged(damage),
            None => Place::Damaged(Damage("no node")),
        })
    }

    /// Take a step, unless an earlier one met damage.
    #[inline(always)]
    fn step(&mut self, step: impl FnOnce(&mut Self) -> Result<(), Damage>) {
        if self.damage.is_none() {
            if let Err(damage) = step(self) {
                self.damage = Some(damage);
                (self.low, self.high) = (0, 0);
            }
        }
    }
}

/// The node of `key` on its leaf: the page and the node's offset.
pub fn find_node<'a>(pages: Pages<'a>, tree: &Tree, key: &[u8]) -> Result<Option<(&'a Page, usize)>, Damage> {
    if tree.depth == 0 {
        return Ok(None);
    }
    let mut walk = Walk::new(pages.page(tree.root)?, tree.root);
    for level in 1..=tree.depth {
        walk.enter(expected_kind(tree, level))?;
        while walk.is_searching() {
            walk.compare(key)?;
        }
        if level < tree.depth {
            walk.descend(pages)?;
        }
    }
    if !walk.is_exact {
        return Ok(None);
    }
    Ok(Some((walk.page, node_offset(walk.page, walk.low.saturating_sub(1))?)))
}

/// The value of `key`. A key that no record can have, empty or too long, has none.
pub fn find<'a>(pages: Pages<'a>, tree: &Tree, key: &[u8]) -> Found<'a> {
    if !can_exist(key) {
        return Ok(None);
    }
    match find_node(pages, tree, key)? {
        Some((page, offset)) => resolve(pages, Some(node_value(page, offset))),
        None => Ok(None),
    }
}

/// Append what `find` returns for each of `keys`, in their order.
pub fn find_many<'a>(pages: Pages<'a>, tree: &Tree, keys: &[&[u8]], found: &mut Vec<Found<'a>>) {
    for keys in keys.chunks(TOGETHER) {
        match keys {
            [key] => found.push(find(pages, tree, key)),
            _ => find_together(pages, tree, keys, found),
        }
    }
}

fn find_together<'a>(pages: Pages<'a>, tree: &Tree, keys: &[&[u8]], found: &mut Vec<Found<'a>>) {
    let root = match pages.page(tree.root) {
        _ if tree.depth == 0 => return found.extend(keys.iter().map(|_| Ok(None))),
        Ok(root) => root,
        Err(damage) => return found.extend(keys.iter().map(|_| Err(damage))),
    };
    let mut walks = [Walk::new(root, tree.root); TOGETHER];
    let walks = &mut walks[..keys.len().min(TOGETHER)];
    for level in 1..=tree.depth {
        search(walks, keys, expected_kind(tree, level));
        if level < tree.depth {
            descend(pages, walks);
        }
    }
    let mut places = [None; TOGETHER];
    for (walk, place) in walks.iter().zip(&mut places) {
        *place = walk.place();
        prefetch_value(pages, *place);
    }
    found.extend(
        keys.iter().zip(places).map(|(key, place)| if can_exist(key) { resolve(pages, place) } else { Ok(None) }),
    );
}

/// Find out where on their pages all keys belong.
#[inline(always)]
pub fn search(walks: &mut [Walk], keys: &[&[u8]], kind: Kind) {
    for walk in walks.iter_mut() {
        walk.step(|walk| walk.enter(kind));
    }
    let mut is_searching = true;
    while is_searching {
        is_searching = false;
        for (walk, key) in walks.iter_mut().zip(keys) {
            if walk.is_searching() {
                walk.step(|walk| walk.compare(key));
                is_searching |= walk.is_searching();
            }
        }
    }
}

/// Take all keys a level down.
#[inline(always)]
pub fn descend<'a>(pages: Pages<'a>, walks: &mut [Walk<'a>]) {
    for walk in walks {
        walk.step(|walk| walk.descend(pages));
        for line in [0, 64, 128] {
            prefetch(walk.page, line);
        }
    }
}

#[inline(always)]
fn prefetch_value(pages: Pages, place: Option<Place>) {
    let start: &[u8] = match place {
        Some(Place::Leaf(value)) => value,
        Some(Place::Overflow { number, .. }) => pages.page(number).map_or(&[], |page| page),
        Some(Place::Damaged(_)) | None => return,
    };
    for line in [0, 64, 128] {
        prefetch(start, line.min(start.len()));
    }
}

#[inline(always)]
fn resolve<'a>(pages: Pages<'a>, place: Option<Place<'a>>) -> Found<'a> {
    match place {
        None => Ok(None),
        Some(Place::Leaf(value)) => Ok(Some(value)),
        Some(Place::Overflow { number, bytes }) => pages.overflow(number, bytes).map(Some),
        Some(Place::Damaged(damage)) => Err(damage),
    }
}

#[inline(always)]
fn can_exist(key: &[u8]) -> bool {
    (1..=MAX_KEY_BYTES).contains(&key.len())
}

/// What the pages of a level are.
pub fn expected_kind(tree: &Tree, level: u16) -> Kind {
    if level == tree.depth {
        Kind::Leaf
    } else {
        Kind::Branch
    }
}
