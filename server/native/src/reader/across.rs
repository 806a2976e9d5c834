//! Keys of several files, looked up in lock step as `walk::find_many` does those of one.
use super::map::{prefetch, PAGE_BYTES};
use super::walk::{can_exist, expected_kind, search, Walk, TOGETHER};
use super::{Found, ShardFile};
use std::hint::black_box;

/// Behind these the processor has seen by itself where the copy goes.
const PREFETCHED_BYTES: usize = 1024;

/// Put what `ShardFile::find` returns for each of `lookups`, a file and a key, into `found`, instead of what is there.
pub fn find_across<'a>(lookups: &[(&'a ShardFile, &[u8])], found: &mut Vec<Found<'a>>) {
    found.clear();
    found.resize(lookups.len(), Ok(None));
    for (lookups, found) in lookups.chunks(TOGETHER).zip(found.chunks_mut(TOGETHER)) {
        let mut order = [0; TOGETHER];
        let order = &mut order[..lookups.len().min(TOGETHER)];
        for (place, slot) in order.iter_mut().enumerate() {
            *slot = place;
        }
        // Shards of one size have trees of one depth, or of two.
        let depth = |&place: &usize| lookups[place].0.records.depth;
        order.sort_by_key(depth);
        for places in order.chunk_by(|place, next| depth(place) == depth(next)) {
            find_together(lookups, places, depth(&places[0]), found);
        }
    }
}

/// Look those of `lookups` up whose trees have that depth.
fn find_together<'a>(lookups: &[(&'a ShardFile, &[u8])], places: &[usize], depth: u16, found: &mut [Found<'a>]) {
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
            _ => file.find(key), // large values, damage, and keys that cannot be
        };
    }
}

/// A walk for each of `places`, on its file's root. None if there is nothing to be looked up in lock step.
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

/// Ask for all of a value that is not large: it is going to be copied.
#[inline(always)]
pub fn prefetch_all(value: &[u8]) {
    for line in (0..value.len().min(PREFETCHED_BYTES)).step_by(64) {
        prefetch(value, line);
    }
}

/// Have all pages of what was found read from disk, if they are not in memory, and wait for it.
pub fn touch(found: Found) {
    if let Ok(Some(value)) = found {
        value.iter().step_by(PAGE_BYTES).chain(value.last()).for_each(|byte| {
            black_box(*byte);
        });
    }
}
