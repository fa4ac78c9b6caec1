//! The model: what the documentation of `Purgatory` promises, as a list of operations.

use crate::script::What;
use crate::steps::Then;
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum State {
    Waits,
    AtOnce,
    Triggered,
    Forced,
    Expired,
    Cancelled,
}

#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) keys: Vec<u32>,
    /// In half milliseconds.
    deadline: u64,
    /// It had passed when the operation was added.
    has_elapsed: bool,
    pub(crate) holds: bool,
    then: Then,
    pub(crate) state: State,
}

#[derive(Debug, Default)]
pub(crate) struct Naive {
    pub(crate) operations: Vec<Operation>,
    /// In half milliseconds.
    pub(crate) now: u64,
    /// What should have been called.
    pub(crate) log: Vec<(What, u32)>,
    /// The callbacks that wait until the one that runs has returned.
    postponed: Option<VecDeque<usize>>,
}

impl Naive {
    /// The nth operation from the end.
    pub(crate) fn nth(&self, nth: usize) -> Option<usize> {
        let len = self.operations.len();
        (len > 0).then(|| len - 1 - nth % len)
    }

    pub(crate) fn waits(&self, id: usize) -> bool {
        self.operations[id].state == State::Waits
    }

    pub(crate) fn add(&mut self, keys: Vec<u32>, timeout: u64, holds: bool, then: Then) {
        let id = self.operations.len();
        let (deadline, has_elapsed) = (self.now + timeout, timeout == 0);
        let state = State::Waits;
        self.operations.push(Operation { keys, deadline, has_elapsed, holds, then, state });
        self.log.push((What::Checked, id as u32));
        if holds {
            self.end(id, State::AtOnce);
        } else {
            self.log.push((What::Checked, id as u32));
        }
    }

    /// The operations on a key, in order, as often as they name it.
    fn watchers(&self, key: u32) -> Vec<usize> {
        let ids = (0..self.operations.len()).filter(|id| self.waits(*id));
        ids.flat_map(|id| {
            let named = self.operations[id].keys.iter().filter(|named| **named == key).count();
            std::iter::repeat_n(id, named)
        })
        .collect()
    }

    pub(crate) fn watched_for(&self, key: u32) -> usize {
        self.watchers(key).len()
    }

    pub(crate) fn trigger(&mut self, key: u32) -> usize {
        let mut completed = 0;
        for id in self.watchers(key) {
            if self.waits(id) {
                self.log.push((What::Checked, id as u32));
                if self.operations[id].holds {
                    completed += 1;
                    self.end(id, State::Triggered);
                }
            }
        }
        completed
    }

    pub(crate) fn cancel_for_key(&mut self, key: u32) -> Vec<u32> {
        let mut cancelled = self.watchers(key);
        cancelled.dedup();
        for id in &cancelled {
            self.operations[*id].state = State::Cancelled;
        }
        cancelled.into_iter().map(|id| id as u32).collect()
    }

    /// Ends an operation; its callback comes now, or after the one that runs.
    pub(crate) fn end(&mut self, id: usize, state: State) {
        self.operations[id].state = state;
        if let Some(postponed) = &mut self.postponed {
            postponed.push_back(id);
            return;
        }
        self.postponed = Some(VecDeque::new());
        let mut next = Some(id);
        while let Some(id) = next {
            self.call(id);
            next = self.postponed.as_mut().and_then(VecDeque::pop_front);
        }
        self.postponed = None;
    }

    fn call(&mut self, id: usize) {
        self.log.push((What::Completed, id as u32));
        match self.operations[id].then {
            Then::Nothing => {}
            Then::Trigger(key) => self.trigger_inside(key),
            Then::CancelForKey(key) => {
                let cancelled = self.cancel_for_key(key);
                self.log.extend(cancelled.into_iter().map(|id| (What::Dropped, id)));
            }
            Then::Enable(nth, key) => {
                let nth = nth % self.operations.len();
                self.operations[nth].holds = true;
                self.trigger_inside(key);
            }
        }
        if self.operations[id].state == State::Expired {
            self.log.push((What::Expired, id as u32));
        }
        self.log.push((What::Dropped, id as u32));
    }

    fn trigger_inside(&mut self, key: u32) {
        let completed = self.trigger(key);
        self.log.push((What::Returned, completed as u32));
    }

    /// The tick at which an operation expires, if that has come; 0 if it has elapsed.
    pub(crate) fn due(&self, id: usize) -> Option<u64> {
        let operation = &self.operations[id];
        let tick = if operation.has_elapsed { 0 } else { operation.deadline.div_ceil(2) };
        (self.waits(id) && tick <= self.now / 2).then_some(tick)
    }

    pub(crate) fn count(&self, state: State) -> usize {
        self.operations.iter().filter(|operation| operation.state == state).count()
    }
}
