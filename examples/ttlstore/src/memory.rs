//! What the keys may take, and which go when they take more.

use crate::store::{Key, Store};
use parking_lot::Mutex;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Keys that are kept in mind as the next to go.
const CANDIDATES: usize = 16;
/// Looks at up to 1024 keys each, before a command is refused.
const MAX_LOOKS: usize = 64;

/// Which keys go when there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// None: commands that need room are refused.
    NoEviction,
    /// Those which would expire soonest, among those that were looked at. Keys without a deadline
    /// stay.
    VolatileTtl,
}

/// How much room keys have.
#[derive(Debug)]
pub struct Memory {
    /// In bytes, as [`Tally::bytes`](crate::tally::Tally::bytes) counts them; 0 is no limit.
    pub max: usize,
    pub policy: Policy,
    evicted: AtomicU64,
    /// The one to go next is the last.
    candidates: Mutex<Vec<(Instant, Key)>>,
}

impl Memory {
    /// Sets a limit.
    pub fn new(max: usize, policy: Policy) -> Self {
        Memory { max, policy, evicted: AtomicU64::new(0), candidates: Mutex::default() }
    }

    /// Returns how many keys had to go.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Removes keys until those that are left take no more than they may. Returns whether they do.
    pub fn make_room(&self, store: &Store, now: Instant) -> bool {
        if self.fits(store) {
            return true;
        }
        let mut candidates = self.candidates.lock();
        let mut looks = 0;
        while !self.fits(store) && self.policy == Policy::VolatileTtl {
            if let Some((deadline, key)) = candidates.pop() {
                let found = store.find(&key, now);
                // Another deadline may be much later: such a key has to be looked at anew.
                let is_meant = |value: Option<Instant>| value == Some(deadline);
                if let Some(found) =
                    found.filter(|it| is_meant(it.value().deadline.map(|it| it.instant)))
                {
                    found.remove();
                    self.evicted.fetch_add(1, Ordering::Relaxed);
                }
            } else if looks < MAX_LOOKS && store.tally().deadlines() > 0 {
                looks += 1;
                *candidates = soonest(store, now);
            } else {
                break;
            }
        }
        self.fits(store)
    }

    fn fits(&self, store: &Store) -> bool {
        self.max == 0 || store.tally().bytes() <= self.max
    }
}

/// Returns those of the next keys which expire first; the first of them is the last.
fn soonest(store: &Store, now: Instant) -> Vec<(Instant, Key)> {
    let mut soonest: Vec<(Instant, Key)> = Vec::with_capacity(CANDIDATES + 1);
    store.visit_some(now, |key, deadline| {
        let Some(deadline) = deadline else { return };
        let place = soonest.partition_point(|(other, _)| *other > deadline.instant);
        if soonest.len() < CANDIDATES || place > 0 {
            soonest.insert(place, (deadline.instant, Key::from(key)));
            if soonest.len() > CANDIDATES {
                soonest.remove(0);
            }
        }
    });
    soonest
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::NoEviction => "noeviction",
            Policy::VolatileTtl => "volatile-ttl",
        })
    }
}

impl FromStr for Policy {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Policy::NoEviction, Policy::VolatileTtl]
            .into_iter()
            .find(|policy| policy.to_string() == text)
            .ok_or("it is noeviction or volatile-ttl")
    }
}
