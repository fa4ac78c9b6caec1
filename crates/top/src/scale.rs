//! Scales: numbers and times in few characters, and the heat of a place.

use std::time::Duration;
use tickwheel_prometheus::LevelFigures;

/// Formats a number in at most six characters.
pub(crate) fn number(value: f64) -> String {
    let (value, unit) = match value {
        v if v >= 999_950_000.0 => (v / 1e9, "G"),
        v if v >= 999_950.0 => (v / 1e6, "M"),
        v if v >= 99_999.5 => (v / 1e3, "k"),
        v => {
            return if v.fract() == 0.0 || v >= 100.0 {
                format!("{v:.0}")
            } else {
                format!("{v:.1}")
            };
        }
    };
    format!("{value:.1}{unit}")
}

/// Formats a time of up to a year in at most six characters.
pub(crate) fn short(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    for (unit, name, up_to) in [
        (1e-9, "ns", 1e-6),
        (1e-6, "us", 1e-3),
        (1e-3, "ms", 1.0),
        (1.0, "s", 60.0),
        (60.0, "min", 3600.0),
        (3600.0, "h", 172_800.0),
    ] {
        if seconds < up_to * 0.9995 {
            let value = seconds / unit;
            return if value < 9.95 {
                format!("{value:.1}{name}")
            } else {
                format!("{value:.0}{name}")
            };
        }
    }
    let days = seconds / 86_400.0;
    if days < 1000.0 {
        format!("{days:.0}d")
    } else {
        format!("{:.0}y", days / 365.25)
    }
}

/// How hot a place is: 0 for nothing, 1 to [`HOTTEST`] for what there is.
pub(crate) type Heat = usize;

pub(crate) const HOTTEST: Heat = 8;

/// Sums up the entries of a level's slots in at most so many columns, each of as many slots as the
/// others: otherwise those with one slot more would look hotter.
pub(crate) fn columns(level: &LevelFigures, width: usize) -> Vec<usize> {
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
pub(crate) fn heat(entries: usize, most: usize) -> Heat {
    if entries == 0 {
        return 0;
    }
    let share = (entries as f64 + 1.0).ln() / (most.max(entries) as f64 + 1.0).ln();
    ((share * HOTTEST as f64).round() as Heat).clamp(1, HOTTEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_short() {
        let numbers = [0.0, 1.5, 99.96, 123.4, 99_999.0, 100_000.0, 1e6, 2.5e9];
        let expected = [
            "0", "1.5", "100.0", "123", "99999", "100.0k", "1.0M", "2.5G",
        ];
        assert_eq!(numbers.map(number), expected);
        let times = [
            0.0, 5e-7, 8.191e-6, 0.001, 0.25, 0.99999, 12.0, 3600.0, 1e6, 1e9,
        ];
        let expected = [
            "0.0ns", "500ns", "8.2us", "1.0ms", "250ms", "1.0s", "12s", "1.0h", "12d", "32y",
        ];
        assert_eq!(times.map(Duration::from_secs_f64).map(short), expected);
    }

    fn level(wheel_size: usize, slots: &[usize]) -> LevelFigures {
        let mut level = LevelFigures::default();
        level.wheel_size = wheel_size;
        level.slots = slots.to_vec();
        level
    }

    #[test]
    fn no_entry_is_lost_however_narrow_it_is() {
        let slots: Vec<usize> = (1..=500).collect();
        for width in [1, 7, 100, 511, 512, 1000] {
            let columns = columns(&level(512, &slots), width);
            assert!(
                columns.len() <= width && 2 * columns.len() > width.min(512),
                "{width}"
            );
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
