//! The other thing that services write: an ordered map behind a mutex.

use crate::threads::{Expiring, Shared};
use parking_lot::Mutex;
use std::collections::BTreeMap;

#[derive(Default)]
pub struct BTree(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    map: BTreeMap<(u64, u64), u64>,
    next: u64,
}

impl Shared for BTree {
    type Deadline = u64;
    type Handle = (u64, u64);

    fn new() -> Self {
        Self::default()
    }

    fn deadline(&self, at_ms: u64) -> u64 {
        at_ms
    }

    fn add(&self, deadline: u64, task: u64) -> (u64, u64) {
        let mut inner = self.0.lock();
        inner.next += 1;
        let key = (deadline, inner.next);
        inner.map.insert(key, task);
        key
    }

    fn cancel(&self, key: (u64, u64)) -> bool {
        self.0.lock().map.remove(&key).is_some()
    }
}

impl Expiring for BTree {
    fn expire_all(&self, last_ms: u64) -> (u64, u64) {
        let (mut count, mut sum) = (0, 0);
        for now in 1..=last_ms {
            let mut inner = self.0.lock();
            while let Some(first) = inner.map.first_entry().filter(|first| first.key().0 <= now) {
                count += 1;
                sum += first.remove();
            }
        }
        (count, sum)
    }
}
