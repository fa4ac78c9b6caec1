//! Heat: how many entries there are where, from none to the most.

use tickwheel_prometheus::LevelFigures;

/// How hot a place is: 0 for nothing, 1 to [`HOTTEST`] for what there is.
pub type Heat = usize;

pub const HOTTEST: Heat = 8;

/// Sums up the entries of a level's slots in at most so many columns, each of as many slots as the
/// others: otherwise those with one slot more would look hotter.
pub fn columns(level: &LevelFigures, width: usize) -> Vec<usize> {
    if width == 0 {
        return Vec::new();
    }
    let slots_each = level.wheel_size.div_ceil(width).max(1);
    let mut columns = vec![0; level.wheel_size.div_ceil(slots_each)];
    for (slot, entries) in level.slots.iter().enumerate().take(level.wheel_size) {
        columns[slot / slots_each] += entries;
    }
    columns
}

/// Returns how hot `entries` are if the maximum is `most`. The scale is logarithmic, because slots
/// of a coarse level hold a thousand times as many entries as those of a fine one.
pub fn heat(entries: usize, most: usize) -> Heat {
    if entries == 0 {
        return 0;
    }
    let share = (entries as f64 + 1.0).ln() / (most.max(entries) as f64 + 1.0).ln();
    ((share * HOTTEST as f64).round() as Heat).clamp(1, HOTTEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(wheel_size: usize, slots: &[usize]) -> LevelFigures {
        let mut level = LevelFigures::default();
        (level.wheel_size, level.slots) = (wheel_size, slots.to_vec());
        level
    }

    #[test]
    fn no_entry_is_lost_however_narrow_it_is() {
        let slots: Vec<usize> = (1..=500).collect();
        for width in [1, 7, 100, 511, 512, 1000] {
            let columns = columns(&level(512, &slots), width);
            assert!(columns.len() <= width && 2 * columns.len() > width.min(512), "{width}");
            assert_eq!(columns.iter().sum::<usize>(), slots.iter().sum::<usize>());
        }
        assert_eq!(columns(&level(4, &[1, 2]), 8), [1, 2, 0, 0]);
        assert_eq!(columns(&level(8, &[1, 2, 0, 0, 5]), 4), [3, 0, 5, 0]);
        assert!(columns(&level(8, &[1]), 0).is_empty());
        // Two slots each, not two and one by turns.
        assert_eq!(columns(&level(8, &[1; 8]), 5), [2; 4]);
    }

    #[test]
    fn the_most_is_the_hottest_and_one_entry_is_seen() {
        for most in [1, 10, 1_000_000] {
            assert_eq!((heat(0, most), heat(most, most)), (0, HOTTEST));
            assert!(heat(1, most) >= 1);
        }
        assert!(heat(1000, 1_000_000) < heat(100_000, 1_000_000));
    }
}
