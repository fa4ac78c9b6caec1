//! Units: numbers and times in few characters.

use std::time::Duration;

/// Formats a number in at most six characters.
pub fn number(value: f64) -> String {
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
pub fn short(time: Duration) -> String {
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
    if days < 1000.0 { format!("{days:.0}d") } else { format!("{:.0}y", days / 365.25) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_short() {
        let numbers = [0.0, 1.5, 99.96, 123.4, 99_999.0, 100_000.0, 1e6, 2.5e9];
        let expected = ["0", "1.5", "100.0", "123", "99999", "100.0k", "1.0M", "2.5G"];
        assert_eq!(numbers.map(number), expected);
        let times = [0.0, 5e-7, 8.191e-6, 0.001, 0.25, 0.99999, 12.0, 3600.0, 1e6, 1e9];
        let expected =
            ["0.0ns", "500ns", "8.2us", "1.0ms", "250ms", "1.0s", "12s", "1.0h", "12d", "32y"];
        assert_eq!(times.map(Duration::from_secs_f64).map(short), expected);
    }
}
