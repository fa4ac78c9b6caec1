//! How `Debug` shows timers: their payloads as text.

use crate::entry::{DeadTimer, Due, Listed};
use std::fmt;

/// How much of a payload is shown.
const SHOWN_BYTES: usize = 64;

struct Payload<'a>(&'a [u8]);

impl fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(SHOWN_BYTES)];
        write!(f, "b\"{}\" of {} bytes", shown.escape_ascii(), self.0.len())
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
    Listed: id, key, tag, at, attempts, running;
    DeadTimer: id, key, tag, died, attempts, reason;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::when::StoreTime;

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
        assert!(shown.contains(r#"payload: b"not \"paid\"\nxxx"#), "{shown}");
        assert!(shown.contains("x\" of 111 bytes"), "{shown}");
    }
}
