//! The alarms of one shard of keyed timers: tasks that expire its keys by their names.
//!
//! An alarm that finds its shard held for long is put off: the thread that runs it, the reaper for
//! example, has others to run. Its name then waits here, beside the shard's lock, and the delay
//! queue has a bucket that stands for all such names. A turn takes them out when it has the shard,
//! as it does with any bucket, and hands them over again. So what waits is no timer.
//!
//! # Locks
//! The lock of the names may be taken under a shard's, and the delay queue's under it.

use crate::store::key::Key;
use crate::sync::Mutex;
use crate::timer::alarm::Alarm;
use crate::timer::delay_queue::{DelayQueue, Wakes};
use crate::timer::entry::Task;
use crate::wheel::bucket_queue::Expiration;
use crate::wheel::wheels::OUTSIDE;
use std::collections::VecDeque;

/// How many are handed over again at once.
const BATCH: usize = if cfg!(tickwheel_model) { 1 } else { 128 };

/// See the [module](self).
pub(crate) struct Alarms {
    alarm: Alarm,
    /// While there are any, their bucket is queued, or a turn has it in hand. `None` once the keyed
    /// timer has gone.
    put_off: Mutex<Option<VecDeque<Key>>>,
}

impl Alarms {
    pub(crate) fn new(expire: impl Fn(Key) + Send + Sync + 'static) -> Self {
        Alarms { alarm: Alarm::new(expire), put_off: Mutex::new(Some(VecDeque::new())) }
    }

    /// Returns the alarm of one key.
    pub(crate) fn task(&self, name: Key) -> Task {
        self.alarm.task(name)
    }

    /// Puts the alarm of a key off, and returns whom to wake; `None` if no turn will come any more.
    pub(crate) fn put_off(&self, queue: &DelayQueue, shard: u32, name: Key) -> Option<Wakes> {
        let mut names = self.put_off.lock();
        let Some(names) = &mut *names else { return Some(Wakes::Nobody) };
        if queue.is_stopped() {
            return None;
        }
        names.push_back(name);
        if names.len() > 1 {
            return Some(Wakes::Nobody);
        }
        Some(queue.offer(Expiration { tick: 0, start: 0, bucket: OUTSIDE, shard }))
    }

    /// Takes out alarms that were put off, to be handed over again. Returns whether there are more.
    pub(crate) fn take(&self, out: &mut Vec<Task>) -> bool {
        let mut names = self.put_off.lock();
        let Some(names) = &mut *names else { return false };
        let batch = names.len().min(BATCH);
        out.extend(names.drain(..batch).map(|name| self.task(name)));
        if names.is_empty() {
            *names = VecDeque::new(); // There may have been very many.
        }
        !names.is_empty()
    }

    /// Forgets what was put off, now and later: the keyed timer has gone, and its number on the
    /// driver may be given to another owner.
    pub(crate) fn end(&self) {
        *self.put_off.lock() = None;
    }
}

#[cfg(all(test, not(tickwheel_model)))]
mod tests {
    use super::*;

    #[test]
    fn names_that_have_gone_leave_no_memory_behind() {
        let (alarms, queue) = (Alarms::new(|_| ()), DelayQueue::new(false));
        for number in 0..1000 {
            assert!(alarms.put_off(&queue, 0, Key::from_bits(number)).is_some());
        }
        let mut tasks = Vec::new();
        while alarms.take(&mut tasks) {}
        let room = alarms.put_off.lock().as_ref().map(VecDeque::capacity);
        assert_eq!((tasks.len(), room), (1000, Some(0)));
    }
}
