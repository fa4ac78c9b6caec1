//! How `Debug` shows timers: their payloads as text, and moments as dates.

use crate::entry::{DeadTimer, Due, Listed, Pending};
use crate::when::StoreTime;
use std::fmt;

/// How much of a payload is shown.
const SHOWN_BYTES: usize = 64;

struct Payload<'a>(&'a [u8]);

impl fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(SHOWN_BYTES)];
        write!(f, "b\"{}\"", shown.escape_ascii())?;
        let more = self.0.len() - shown.len();
        if more > 0 {
            write!(f, " and {more} bytes")
        } else {
            Ok(())
        }
    }
}

macro_rules! shown {
    ($($type:ident: $($field:ident),+;)+) => {
        $(impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut shown = f.debug_struct(stringify!($type));
                $(shown.field(stringify!($field), &self.$field);)+
                shown.field("payload", &Payload(&self.payload)).finish_non_exhaustive()
            }
        })+
    };
}
shown! {
    Due: id, key, tag, at, planned, attempt, late_by, token;
    Pending: at, attempts, running;
    Listed: id, key, tag, at, attempts, running;
    DeadTimer: id, key, tag, died, attempts, reason;
}

const DAY: i64 = 86_400_000_000;

impl fmt::Debug for StoreTime {
    /// Shows the moment as `2026-11-27 15:30:00.000000`, in UTC.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.as_micros() % DAY;
        // Years are counted from a first of March, so that a leap day is the last of its year; and
        // in cycles of 400 years, which have equally many days.
        let days = self.as_micros() / DAY + 719_468;
        let cycle = days / 146_097;
        let day = days % 146_097;
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let year = 400 * cycle + year + month / 10;
        let month = (month + 2) % 12 + 1;
        let seconds = micros / 1_000_000;
        let second = seconds % 60;
        let minute = seconds / 60 % 60;
        let hour = seconds / 3_600;
        let micros = micros % 1_000_000;
        write!(
            f,
            "{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listed_timer_can_be_read() {
        let listed = Listed {
            id: 7,
            key: Some("a".to_owned()),
            tag: None,
            payload: [b"not \"paid\"\n", &[b'x'; 100][..]].concat(),
            at: StoreTime::from_micros(1_795_793_400_000_007),
            attempts: 0,
            running: false,
        };
        let shown = format!("{listed:?}");
        assert!(shown.contains("at: 2026-11-27 15:30:00.000007,"), "{shown}");
        assert!(shown.contains(r#"payload: b"not \"paid\"\nxxx"#), "{shown}");
        assert!(shown.contains("x\" and 47 bytes"), "{shown}");
    }

    /// As `date -u -d @SECONDS` says.
    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, date) in [
            (0, "1970-01-01 00:00:00.000000"),
            (951_782_399, "2000-02-28 23:59:59.000000"),
            (951_782_400, "2000-02-29 00:00:00.000000"),
            (951_868_800, "2000-03-01 00:00:00.000000"),
            (978_307_199, "2000-12-31 23:59:59.000000"),
            (4_107_542_400, "2100-03-01 00:00:00.000000"),
        ] {
            assert_eq!(
                format!("{:?}", StoreTime::from_micros(seconds * 1_000_000)),
                date
            );
        }
        assert_eq!(
            format!("{:?}", StoreTime::MAX),
            "5138-11-16 09:46:40.000000"
        );
    }
}
