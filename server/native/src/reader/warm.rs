//! Reads the pages that lookups will need from disk, all of a level together, where a lookup waits for one after another.
//!
//! What is damaged is passed over: the lookup that follows tells of it.
use super::map::Map;
use super::meta::Tree;
use super::page::{u16_at, Pages, Place};
use super::walk::{descend, expected_kind, search, Walk};
use std::hint::black_box;

/// Keys that take their steps together: as many reads as a disk is glad to have at once.
const TOGETHER: usize = 1024;
/// Of values on overflow pages, no more pages are read for some keys than the largest value has.
const MAX_OVERFLOW_PAGES: usize = (64 << 20) / super::map::PAGE_BYTES + 2;

/// Make resident what `find_many` will look at for `keys`. Returns how many pages were asked for, some of them twice.
pub fn warm(map: &Map, pages: Pages, tree: &Tree, keys: &[&[u8]]) -> usize {
    keys.chunks(TOGETHER).map(|keys| warm_together(map, pages, tree, keys)).sum()
}

fn warm_together(map: &Map, pages: Pages, tree: &Tree, keys: &[&[u8]]) -> usize {
    let Ok(root) = pages.page(tree.root) else { return 0 };
    let mut walks = vec![Walk::new(root, tree.root); keys.len()];
    let mut asked = 0;
    for level in 1..=tree.depth {
        asked += ask_for_pages(map, &walks);
        search(&mut walks, keys, expected_kind(tree, level)); // waits for each of these pages, which are on their way
        if level < tree.depth {
            descend(pages, &mut walks);
        }
    }
    asked + warm_overflows(map, pages, &walks)
}

/// Ask for the pages that the walks are on.
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
