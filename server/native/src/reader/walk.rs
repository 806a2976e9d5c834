//! From the root to a key: one key alone, or up to 32 in lock step, so that their waits for memory overlap.
//!
//! A lookup mostly waits: for each page of its path, and for each key that is compared there. In lock step every key
//! takes one step (a comparison, a level) before any takes the next, and asks for the memory of its next step when it has
//! taken one. A walk takes as many levels as the tree has, whatever the pages say: it ends.
use super::map::{prefetch, Page};
use super::meta::Tree;
use super::page::{count_nodes, node_child, node_key, node_offset, node_value, Kind, Pages, Place, NODE_HEADER};
use super::{Damage, Found};
use std::cmp::Ordering;

/// LMDB has no longer keys, and no empty one.
const MAX_KEY_BYTES: usize = 511;
/// Stands for what needs another look.
const UNRESOLVED: Damage = Damage("not resolved");
/// How many keys take their steps together: enough to hide the waits, and few enough to stay in the nearest cache.
pub const TOGETHER: usize = 32;

/// One key's way: the page that it is on, and where in it the key may still be. Small, so that all are near.
#[derive(Clone, Copy)]
pub struct Walk<'a> {
    page: &'a Page,
    pub number: u64,
    /// Of the node to compare with next.
    offset: u16,
    /// The key is not before the nodes below `low`, and is before those from `high` on.
    low: u16,
    high: u16,
    /// Whether the last node that the key is not before has this key.
    is_exact: bool,
    pub is_damaged: bool,
}

impl<'a> Walk<'a> {
    pub fn new(page: &'a Page, number: u64) -> Walk<'a> {
        Walk { page, number, offset: 0, low: 0, high: 0, is_exact: false, is_damaged: false }
    }

    /// Begin to search the page. The first node of a branch is less than all, and its key is not looked at.
    #[inline(always)]
    fn enter(&mut self, kind: Kind) -> Result<(), Damage> {
        self.high = count_nodes(self.page, self.number, kind)?;
        self.low = (kind == Kind::Branch) as u16;
        self.is_exact = false;
        Ok(())
    }

    #[inline(always)]
    fn is_searching(&self) -> bool {
        self.low < self.high
    }

    /// Choose the node to compare with next, and ask for its header and key.
    #[inline(always)]
    fn aim(&mut self, key: &[u8]) -> Result<(), Damage> {
        if self.is_searching() {
            self.offset = node_offset(self.page, (self.low + self.high) / 2)?;
            prefetch(self.page, self.offset as usize);
            prefetch(self.page, self.offset as usize + NODE_HEADER + key.len());
        }
        Ok(())
    }

    /// Compare with the chosen node. No jump depends on how that ends, for nobody can foresee it.
    #[inline(always)]
    fn compare(&mut self, key: &[u8]) -> Result<(), Damage> {
        let middle = (self.low + self.high) / 2;
        let order = compare_keys(key, node_key(self.page, self.offset)?);
        let (is_before, is_equal) = (order == Ordering::Less, order == Ordering::Equal);
        self.low = if is_before { self.low } else { middle + 1 };
        self.high = if order == Ordering::Greater { self.high } else { middle + is_equal as u16 };
        self.is_exact |= is_equal;
        self.aim(key)
    }

    /// The same for a key alone: what a jump guesses the processor fetches early, and right every other time.
    #[inline(always)]
    fn guess(&mut self, key: &[u8]) -> Result<(), Damage> {
        let middle = (self.low + self.high) / 2;
        let offset = node_offset(self.page, middle)?;
        for next in [(self.low + middle) / 2, (middle + 1 + self.high) / 2] {
            if let Ok(offset) = node_offset(self.page, next) {
                prefetch(self.page, offset as usize + NODE_HEADER);
            }
        }
        match compare_keys(key, node_key(self.page, offset)?) {
            Ordering::Less => self.high = middle,
            Ordering::Greater => self.low = middle + 1,
            Ordering::Equal => (self.low, self.high, self.is_exact) = (middle + 1, middle + 1, true),
        }
        Ok(())
    }

    /// Go to the page below, behind the last node that the key is not before.
    #[inline(always)]
    pub fn descend(&mut self, pages: Pages<'a>) -> Result<(), Damage> {
        self.number = node_child(self.page, self.last_node()?)?;
        self.page = pages.page(self.number)?;
        Ok(())
    }

    /// The last node that the key is not before, or else the first.
    #[inline(always)]
    fn last_node(&self) -> Result<u16, Damage> {
        node_offset(self.page, self.low.saturating_sub(1))
    }

    /// Where the value is, if the leaf has the key.
    #[inline(always)]
    pub fn place(&self) -> Result<Option<Place<'a>>, Damage> {
        if self.is_exact {
            node_value(self.page, self.last_node()?).map(Some)
        } else {
            Ok(None)
        }
    }

    /// The value, if it is on the leaf; Some(None) if there is none. None if that needs another look.
    #[inline(always)]
    pub fn value(&self) -> Option<Option<&'a [u8]>> {
        match self.place() {
            _ if self.is_damaged => None,
            Ok(None) => Some(None),
            Ok(Some(Place::Leaf(value))) => Some(Some(value)),
            _ => None,
        }
    }

    /// Ask for the beginning of the page that it is on.
    #[inline(always)]
    pub fn prefetch(&self) {
        prefetch_lines(self.page);
    }

    /// Take a step, unless an earlier one met damage.
    #[inline(always)]
    pub fn step(&mut self, step: impl FnOnce(&mut Self) -> Result<(), Damage>) {
        if !self.is_damaged && step(self).is_err() {
            self.is_damaged = true;
            (self.low, self.is_exact) = (self.high, false);
        }
    }
}

/// The leaf that has `key`, and the offset of its node there.
pub fn find_node<'a>(pages: Pages<'a>, tree: &Tree, key: &[u8]) -> Result<Option<(&'a Page, u16)>, Damage> {
    let walk = walk_to_leaf(pages, tree, key)?;
    walk.filter(|walk| walk.is_exact).map(|walk| Ok((walk.page, walk.last_node()?))).transpose()
}

/// The value of `key`. A key that no record can have, empty or too long, has none.
pub fn find<'a>(pages: Pages<'a>, tree: &Tree, key: &[u8]) -> Found<'a> {
    if !can_exist(key) {
        return Ok(None);
    }
    match walk_to_leaf(pages, tree, key)? {
        Some(walk) => resolve(pages, walk.place()?),
        None => Ok(None),
    }
}

fn walk_to_leaf<'a>(pages: Pages<'a>, tree: &Tree, key: &[u8]) -> Result<Option<Walk<'a>>, Damage> {
    if tree.depth == 0 {
        return Ok(None);
    }
    let mut walk = Walk::new(pages.page(tree.root)?, tree.root);
    for level in 1..=tree.depth {
        walk.enter(expected_kind(tree, level))?;
        while walk.is_searching() {
            walk.guess(key)?;
        }
        if level < tree.depth {
            walk.descend(pages)?;
            walk.prefetch();
        }
    }
    Ok(Some(walk))
}

/// Append what `find` returns for each of `keys`, in their order.
pub fn find_many<'a>(pages: Pages<'a>, tree: &Tree, keys: &[&[u8]], found: &mut Vec<Found<'a>>) {
    found.reserve(keys.len());
    for keys in keys.chunks(TOGETHER) {
        match pages.page(tree.root) {
            Ok(root) if tree.depth > 0 && keys.len() > 1 => find_together(pages, tree, root, keys, found),
            _ => found.extend(keys.iter().map(|key| find(pages, tree, key))),
        }
    }
}

fn find_together<'a>(pages: Pages<'a>, tree: &Tree, root: &'a Page, keys: &[&[u8]], found: &mut Vec<Found<'a>>) {
    let mut walks = [Walk::new(root, tree.root); TOGETHER];
    let walks = &mut walks[..keys.len().min(TOGETHER)];
    for level in 1..=tree.depth {
        search(walks, keys, expected_kind(tree, level));
        if level < tree.depth {
            descend(pages, walks);
        }
    }
    let start = found.len();
    let mut is_complete = true;
    for (walk, key) in walks.iter().zip(keys) {
        found.push(match walk.place() {
            _ if walk.is_damaged || !can_exist(key) => Err(UNRESOLVED),
            Ok(None) => Ok(None),
            Ok(Some(Place::Leaf(value))) => {
                prefetch_lines(value);
                Ok(Some(value))
            }
            Ok(Some(Place::Overflow { number, .. })) => {
                prefetch_lines(pages.page(number).map_or(&[], |page| page));
                Err(UNRESOLVED)
            }
            Err(_) => Err(UNRESOLVED),
        });
        is_complete &= !matches!(found.last(), Some(Err(_)));
    }
    if !is_complete {
        resolve_rest(pages, tree, walks, keys, &mut found[start..]);
    }
}

/// Find out what is not simply on a leaf or absent: large values, damage, and keys that cannot be.
#[cold]
fn resolve_rest<'a>(pages: Pages<'a>, tree: &Tree, walks: &[Walk<'a>], keys: &[&[u8]], found: &mut [Found<'a>]) {
    for ((walk, key), found) in walks.iter().zip(keys).zip(found) {
        if found.is_err() {
            *found = match walk.place() {
                Ok(place) if !walk.is_damaged && can_exist(key) => resolve(pages, place),
                _ => find(pages, tree, key),
            };
        }
    }
}

/// Find out where on their pages all keys belong.
#[inline(always)]
pub fn search(walks: &mut [Walk], keys: &[&[u8]], kind: Kind) {
    for (walk, key) in walks.iter_mut().zip(keys) {
        walk.step(|walk| walk.enter(kind).and_then(|()| walk.aim(key)));
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
        prefetch_lines(walk.page);
    }
}

/// As `cmp`, eight bytes at a time, which costs no call.
#[inline(always)]
fn compare_keys(key: &[u8], other: &[u8]) -> Ordering {
    let mut rests = (key, other);
    while let (Some((head, rest)), Some((other_head, other_rest))) =
        (rests.0.split_first_chunk(), rests.1.split_first_chunk())
    {
        let (head, other_head) = (u64::from_be_bytes(*head), u64::from_be_bytes(*other_head));
        if head != other_head {
            return head.cmp(&other_head);
        }
        rests = (rest, other_rest);
    }
    rests.0.cmp(rests.1)
}

/// Ask for the beginning of a page or value.
#[inline(always)]
fn prefetch_lines(bytes: &[u8]) {
    for line in [0, 64, 128] {
        prefetch(bytes, line.min(bytes.len()));
    }
}

#[inline(always)]
fn resolve<'a>(pages: Pages<'a>, place: Option<Place<'a>>) -> Found<'a> {
    match place {
        None => Ok(None),
        Some(Place::Leaf(value)) => Ok(Some(value)),
        Some(Place::Overflow { number, bytes }) => pages.overflow(number, bytes).map(Some),
    }
}

#[inline(always)]
pub fn can_exist(key: &[u8]) -> bool {
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

#[cfg(test)]
mod tests {
    use super::compare_keys;

    #[test]
    fn keys_are_in_the_order_of_their_bytes_wherever_they_differ() {
        let long = [b'a'; 20];
        let mut keys: Vec<Vec<u8>> = (0..=long.len()).map(|length| long[..length].to_vec()).collect();
        for at in [0, 1, 7, 8, 9, 15, 19] {
            for byte in [0, b'A', b'b', 0x80, 0xff] {
                let mut key = long.to_vec();
                key[at] = byte;
                keys.extend([key[..=at].to_vec(), key]);
            }
        }
        for key in &keys {
            for other in &keys {
                assert_eq!(compare_keys(key, other), key.cmp(other), "{key:?} and {other:?}");
            }
        }
    }
}
