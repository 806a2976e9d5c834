//! Whether JSON may have an integer that a quick parser would round.

/// Digits of the shortest integer that may be beyond 64 bits.
const SHORTEST_LONG: usize = 19;

/// Whether there are so many digits in a row, in a number or in a text. A run of them covers a place whose number is a
/// multiple of their count: no other places are looked at.
pub fn may_have_long_number(text: &[u8]) -> bool {
    let mut at = SHORTEST_LONG - 1;
    while let Some(byte) = text.get(at) {
        if byte.is_ascii_digit() && run_around(text, at) >= SHORTEST_LONG {
            return true;
        }
        at += SHORTEST_LONG;
    }
    false
}

/// How many digits stand in a row around the place `at`, as far as that matters.
fn run_around(text: &[u8], at: usize) -> usize {
    let (before, behind) = text.split_at(at);
    let digits_before = before.iter().rev().take(SHORTEST_LONG).take_while(|byte| byte.is_ascii_digit()).count();
    let digits_behind = behind.iter().take(SHORTEST_LONG).take_while(|byte| byte.is_ascii_digit()).count();
    digits_before + digits_behind
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_found_wherever_it_stands() {
        for start in 0..60 {
            for behind in 0..60 {
                for (count, is_long) in [(18, false), (19, true), (20, true), (57, true)] {
                    let text = format!("{}{}{}", "x".repeat(start), "7".repeat(count), "x".repeat(behind));
                    assert_eq!(may_have_long_number(text.as_bytes()), is_long, "{text}");
                }
            }
        }
    }

    #[test]
    fn runs_that_are_near_are_not_one() {
        let text = format!("[{},-{}]", "9".repeat(18), "9".repeat(18));
        assert!(!may_have_long_number(text.as_bytes()));
        assert!(!may_have_long_number(b""));
    }
}
