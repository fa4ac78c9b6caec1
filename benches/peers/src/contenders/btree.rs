//! The other thing that services write: an ordered map.

use crate::contenders::locked::Locked;
use crate::contenders::queue::DeadlineQueue;
use std::collections::BTreeMap;

/// Behind a mutex.
pub type BTree = Locked<OrderedMap>;

#[derive(Default)]
pub struct OrderedMap {
    map: BTreeMap<(u64, u64), u64>,
    next: u64,
}

impl DeadlineQueue for OrderedMap {
    type Handle = (u64, u64);

    fn add(&mut self, deadline: u64, task: u64) -> (u64, u64) {
        self.next += 1;
        let key = (deadline, self.next);
        self.map.insert(key, task);
        key
    }

    fn cancel(&mut self, key: (u64, u64)) -> bool {
        self.map.remove(&key).is_some()
    }

    fn first(&self) -> Option<u64> {
        self.map.first_key_value().map(|(key, _)| key.0)
    }

    fn pop(&mut self, now: u64, expired: impl FnOnce(u64)) -> bool {
        let Some(first) = self.map.first_entry().filter(|first| first.key().0 <= now) else {
            return false;
        };
        expired(first.remove());
        true
    }
}
