//! The keys that transactions watch.

use crate::store::Key;
use foldhash::fast::RandomState;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Who watches which key. While nobody watches any, a write looks at one number.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    keys: AtomicUsize,
    by_key: Mutex<HashMap<Key, Vec<Arc<AtomicBool>>, RandomState>>,
}

impl Watches {
    /// Sets `touched` when the key changes, from now on.
    pub(crate) fn watch(&self, key: &[u8], touched: &Arc<AtomicBool>) {
        let mut by_key = self.by_key.lock();
        by_key.entry(Key::from(key)).or_default().push(Arc::clone(touched));
        self.keys.store(by_key.len(), Ordering::Relaxed);
    }

    /// Takes back a [`watch`](Self::watch) of this key.
    pub(crate) fn unwatch(&self, key: &[u8], touched: &Arc<AtomicBool>) {
        let mut by_key = self.by_key.lock();
        if let Some(watchers) = by_key.get_mut(key) {
            watchers.retain(|watcher| !Arc::ptr_eq(watcher, touched));
            if watchers.is_empty() {
                by_key.remove(key);
            }
        }
        self.keys.store(by_key.len(), Ordering::Relaxed);
    }

    /// Tells those who watch the key that it has changed. It must be called under the lock of the
    /// key's shard, which whoever begins to watch holds as well.
    pub(crate) fn touch(&self, key: &[u8]) {
        if self.keys.load(Ordering::Relaxed) > 0 {
            let by_key = self.by_key.lock();
            for touched in by_key.get(key).into_iter().flatten() {
                touched.store(true, Ordering::Relaxed);
            }
        }
    }
}
