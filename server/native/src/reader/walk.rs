//! From the root to a key: one key alone, or up to 32 in lock step, so that their waits for memory overlap.
//!
//! A lookup mostly waits: for each page of its path, and for each key that it compares there. In lock step every key
//! takes one step (a comparison, a level) before any takes the next, and prefetches the memory for its next step. A
//! walk goes down as many levels as the tree has, whatever the pages contain, so it always ends.
use std::cmp::Ordering;
use std::hint::black_box;

use super::page::{
    count_nodes, node_child, node_key, node_offset, node_value, u16_at, Kind, Pages, Place, Tree, NODE_HEADER,
};
use super::{Damage, Found, ShardFile, MAX_KEY_BYTES};
use crate::system::{prefetch, Map, Page, PAGE_BYTES};

/// A placeholder for a lookup that `resolve_rest` finishes.
const UNRESOLVED: Damage = Damage("not resolved");
/// The number of keys in lock step: enough to hide the waits, and few enough for the nearest cache.
pub const TOGETHER: usize = 32;

/// One key's way: its page, and where in it the key may be. Small, so that all fit into the nearest cache.
#[derive(Clone, Copy)]
pub struct Walk<'a> {
    page: &'a Page,
    pub number: u64,
    /// The offset of the node to compare with next.
    offset: u16,
    /// The keys of the nodes below `low` are at most the searched key; those from `high` on are greater.
    low: u16,
    high: u16,
    /// Whether a node with exactly the searched key was found.
    is_exact: bool,
    pub is_damaged: bool,
}

impl<'a> Walk<'a> {
    pub fn new(page: &'a Page, number: u64) -> Walk<'a> {
        Walk { page, number, offset: 0, low: 0, high: 0, is_exact: false, is_damaged: false }
    }

    /// Begin to search the page. The first node of a branch is less than all keys, and is not compared.
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

    /// Choose the node to compare with next, and prefetch its header and key.
    #[inline(always)]
    fn aim(&mut self, key: &[u8]) -> Result<(), Damage> {
        if self.is_searching() {
            self.offset = node_offset(self.page, (self.low + self.high) / 2)?;
            prefetch(self.page, self.offset as usize);
            prefetch(self.page, self.offset as usize + NODE_HEADER + key.len());
        }
        Ok(())
    }

    /// Compare with the chosen node. No branch depends on the result, because it cannot be predicted.
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

    /// The same for a lone key, with a branch: the processor fetches what it guesses, which is right every other time.
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

    /// Go to the child of `last_node`.
    #[inline(always)]
    pub fn descend(&mut self, pages: Pages<'a>) -> Result<(), Damage> {
        self.number = node_child(self.page, self.last_node()?)?;
        self.page = pages.page(self.number)?;
        Ok(())
    }

    /// The last node whose key is at most the searched key; if there is none, the first node.
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

    /// The value on the leaf, Some(None) if the key is missing, None if the lookup must be repeated by `find`.
    #[inline(always)]
    pub fn value(&self) -> Option<Option<&'a [u8]>> {
        match self.place() {
            _ if self.is_damaged => None,
            Ok(None) => Some(None),
            Ok(Some(Place::Leaf(value))) => Some(Some(value)),
            _ => None,
        }
    }

    /// Prefetch the beginning of the walk's page.
    #[inline(always)]
    pub fn prefetch(&self) {
        prefetch_lines(self.page);
    }

    /// Take a step, unless an earlier one found damage.
    #[inline(always)]
    pub fn step(&mut self, step: impl FnOnce(&mut Self) -> Result<(), Damage>) {
        if !self.is_damaged && step(self).is_err() {
            self.is_damaged = true;
            (self.low, self.is_exact) = (self.high, false);
        }
    }
}

/// The leaf of `key`, and the offset of its node there.
pub fn find_node<'a>(pages: Pages<'a>, tree: &Tree, key: &[u8]) -> Result<Option<(&'a Page, u16)>, Damage> {
    let walk = walk_to_leaf(pages, tree, key)?;
    walk.filter(|walk| walk.is_exact).map(|walk| Ok((walk.page, walk.last_node()?))).transpose()
}

/// The value of `key`; None if no record has it, as for an empty or too long key.
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

/// Append the result of `find` for each of `keys`, in their order.
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

/// Finish the lookups whose value is not on a leaf: large values, damage, and impossible keys.
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

/// Find the places of all keys on their pages.
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

/// Take all walks a level down.
#[inline(always)]
pub fn descend<'a>(pages: Pages<'a>, walks: &mut [Walk<'a>]) {
    for walk in walks {
        walk.step(|walk| walk.descend(pages));
        prefetch_lines(walk.page);
    }
}

/// The same as `cmp`, but eight bytes at a time, without a call.
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

/// Prefetch the beginning of a page or value.
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

/// The kind of pages of a level.
pub fn expected_kind(tree: &Tree, level: u16) -> Kind {
    if level == tree.depth {
        Kind::Leaf
    } else {
        Kind::Branch
    }
}

/// After this many bytes the processor prefetches by itself.
const PREFETCHED_BYTES: usize = 1024;

/// Replace `found` by the results of `ShardFile::find` for each of `lookups`, which go over several files in lock step.
pub fn find_across<'a>(lookups: &[(&'a ShardFile, &[u8])], found: &mut Vec<Found<'a>>) {
    found.clear();
    found.resize(lookups.len(), Ok(None));
    for (lookups, found) in lookups.chunks(TOGETHER).zip(found.chunks_mut(TOGETHER)) {
        let mut order = [0; TOGETHER];
        let order = &mut order[..lookups.len().min(TOGETHER)];
        for (place, slot) in order.iter_mut().enumerate() {
            *slot = place;
        }
        // Trees of shards of similar size have at most two different depths.
        let depth = |&place: &usize| lookups[place].0.records.depth;
        order.sort_by_key(depth);
        for places in order.chunk_by(|place, next| depth(place) == depth(next)) {
            find_across_together(lookups, places, depth(&places[0]), found);
        }
    }
}

/// Look up those of `lookups` whose trees have this depth.
fn find_across_together<'a>(lookups: &[(&'a ShardFile, &[u8])], places: &[usize], depth: u16, found: &mut [Found<'a>]) {
    let Some((mut walks, keys)) = begin(lookups, places, depth) else {
        for &place in places {
            let (file, key) = lookups[place];
            found[place] = file.find(key);
        }
        return;
    };
    let (walks, keys) = (&mut walks[..places.len()], &keys[..places.len()]);
    for level in 1..=depth {
        search(walks, keys, expected_kind(&lookups[places[0]].0.records, level));
        if level < depth {
            for (walk, &place) in walks.iter_mut().zip(places) {
                walk.step(|walk| walk.descend(lookups[place].0.pages()));
                walk.prefetch();
            }
        }
    }
    for (walk, &place) in walks.iter().zip(places) {
        let (file, key) = lookups[place];
        found[place] = match walk.value() {
            Some(value) if can_exist(key) => {
                value.into_iter().for_each(|value| prefetch(value, 0));
                Ok(value)
            }
            _ => file.find(key), // large values, damage, and impossible keys
        };
    }
}

/// A walk for each of `places`, at its file's root. None if lock step is impossible.
#[allow(clippy::type_complexity)]
fn begin<'a, 'k>(
    lookups: &[(&'a ShardFile, &'k [u8])],
    places: &[usize],
    depth: u16,
) -> Option<([Walk<'a>; TOGETHER], [&'k [u8]; TOGETHER])> {
    if depth == 0 || places.len() < 2 {
        return None;
    }
    let walk = |place: usize| {
        let file = lookups[place].0;
        file.pages().page(file.records.root).map(|page| Walk::new(page, file.records.root))
    };
    let mut walks = [walk(places[0]).ok()?; TOGETHER];
    let mut keys = [&b""[..]; TOGETHER];
    for ((slot, key), &place) in walks.iter_mut().zip(&mut keys).zip(places) {
        *slot = walk(place).ok()?;
        slot.prefetch();
        *key = lookups[place].1;
    }
    Some((walks, keys))
}

/// Prefetch all of a value that is about to be copied, unless it is large.
#[inline(always)]
pub fn prefetch_all(value: &[u8]) {
    for line in (0..value.len().min(PREFETCHED_BYTES)).step_by(64) {
        prefetch(value, line);
    }
}

/// Read all pages of a found value from disk, and wait for them.
pub fn touch(found: Found) {
    if let Ok(Some(value)) = found {
        value.iter().step_by(PAGE_BYTES).chain(value.last()).for_each(|byte| {
            black_box(*byte);
        });
    }
}

/// The number of keys in lock step when pages are read from disk: as many reads as keep a disk busy.
const WARMED_TOGETHER: usize = 1024;
/// The maximum number of overflow pages that are read for the keys in lock step: as many as the largest value has.
const MAX_OVERFLOW_PAGES: usize = (64 << 20) / PAGE_BYTES + 2;

/// Read the pages that `find_many` needs for `keys`, level by level, and return their number with repetitions.
pub fn warm(map: &Map, pages: Pages, tree: &Tree, keys: &[&[u8]]) -> usize {
    keys.chunks(WARMED_TOGETHER).map(|keys| warm_together(map, pages, tree, keys)).sum()
}

fn warm_together(map: &Map, pages: Pages, tree: &Tree, keys: &[&[u8]]) -> usize {
    let Ok(root) = pages.page(tree.root) else { return 0 };
    let mut walks = vec![Walk::new(root, tree.root); keys.len()];
    let mut asked = 0;
    for level in 1..=tree.depth {
        asked += ask_for_pages(map, &walks);
        search(&mut walks, keys, expected_kind(tree, level)); // waits for these pages
        if level < tree.depth {
            descend(pages, &mut walks);
        }
    }
    asked + warm_overflows(map, pages, &walks)
}

/// Request the pages of the walks.
fn ask_for_pages(map: &Map, walks: &[Walk]) -> usize {
    let mut numbers: Vec<u64> = walks.iter().filter(|walk| !walk.is_damaged).map(|walk| walk.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    for &number in &numbers {
        map.will_need(number, 1);
    }
    numbers.len()
}

fn warm_overflows(map: &Map, pages: Pages, walks: &[Walk]) -> usize {
    let mut values = Vec::new();
    let mut asked = 0;
    for walk in walks {
        let Ok(Some(Place::Overflow { number, bytes })) = walk.place() else { continue };
        let count = Pages::count_overflow(bytes);
        if asked + count > MAX_OVERFLOW_PAGES {
            break;
        }
        map.will_need(number, count);
        values.push((number, count));
        asked += count;
    }
    for (number, count) in values {
        let page = |place| pages.page(number.checked_add(place)?).ok();
        for page in (0..count as u64).map_while(page) {
            black_box(u16_at(page, 0)); // waits for it
        }
    }
    asked
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
