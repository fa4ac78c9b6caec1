//! The model: what the documentation of `Purgatory` promises, as a list of operations; and what is
//! done to both.

use crate::script::What;
use quickcheck::{Arbitrary, Gen};
use std::collections::{BTreeMap, VecDeque};

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
    /// The tick in which it was added or moved, if the deadline had passed then.
    added: Option<u64>,
    pub(crate) holds: bool,
    then: Then,
    pub(crate) state: State,
    pub(crate) has_handle: bool,
}

/// An operation on a key: how often it had named the key before that.
type Entry = (usize, usize);

#[derive(Debug, Default)]
pub(crate) struct Naive {
    pub(crate) operations: Vec<Operation>,
    /// In half milliseconds.
    pub(crate) now: u64,
    /// What should have been called.
    pub(crate) log: Vec<(What, u32)>,
    /// What waits until the callback that runs has returned.
    agenda: VecDeque<Item>,
    in_code: bool,
    at_work: bool,
    /// How many lines of each key were forgotten.
    lines: BTreeMap<u32, u32>,
}

#[derive(Debug)]
enum Item {
    Callback(usize),
    /// Of a key's line: one that was forgotten meanwhile is not triggered.
    Trigger(u32, u32, Option<usize>),
}

/// What a call takes along at once.
const BATCH: usize = 32;

impl Naive {
    /// Returns the nth operation from the end.
    pub(crate) fn nth(&self, nth: usize) -> Option<usize> {
        let len = self.operations.len();
        (len > 0).then(|| len - 1 - nth % len)
    }

    /// Returns the nth operation from the end if its handle is there.
    pub(crate) fn nth_handle(&self, nth: usize) -> Option<usize> {
        self.nth(nth).filter(|id| self.operations[*id].has_handle)
    }

    pub(crate) fn waits(&self, id: usize) -> bool {
        self.operations[id].state == State::Waits
    }

    pub(crate) fn add(&mut self, keys: Vec<u32>, timeout: u64, holds: bool, then: Then) {
        let id = self.operations.len();
        keys.iter().for_each(|key| self.forget_empty_line(*key));
        let deadline = self.now + timeout;
        let added = (timeout == 0).then_some(self.now / 2);
        let state = State::Waits;
        let has_handle = false;
        let operation = Operation {
            keys,
            deadline,
            added,
            holds,
            then,
            state,
            has_handle,
        };
        self.operations.push(operation);
        self.log.push((What::Checked, id as u32));
        if holds {
            self.end(id, State::AtOnce);
        } else {
            self.log.push((What::Checked, id as u32));
            self.operations[id].has_handle = true;
        }
    }

    /// Begins another line for a key that has no operations left.
    fn forget_empty_line(&mut self, key: u32) {
        if self.watched_for(key) == 0 {
            *self.lines.entry(key).or_default() += 1;
        }
    }

    /// Returns the operations on a key, in order, as often as they name it.
    fn line(&self, key: u32) -> Vec<Entry> {
        let ids = (0..self.operations.len()).filter(|id| self.waits(*id));
        ids.flat_map(|id| {
            let named = self.operations[id]
                .keys
                .iter()
                .filter(|named| **named == key)
                .count();
            (0..named).map(move |nth| (id, nth))
        })
        .collect()
    }

    fn watchers(&self, key: u32) -> Vec<usize> {
        self.line(key).into_iter().map(|(id, _)| id).collect()
    }

    pub(crate) fn watched_for(&self, key: u32) -> usize {
        self.watchers(key).len()
    }

    pub(crate) fn trigger(&mut self, key: u32) -> usize {
        self.trigger_up_to(key, usize::MAX)
    }

    pub(crate) fn trigger_up_to(&mut self, key: u32, limit: usize) -> usize {
        let mut rest = self.line(key).into_iter();
        let mut completed = 0;
        while completed < limit {
            let room = BATCH.min(limit - completed);
            let batch: Vec<Entry> = rest
                .by_ref()
                .filter(|(id, _)| self.waits(*id))
                .take(room)
                .collect();
            if batch.is_empty() {
                break;
            }
            completed += batch.iter().filter(|(id, _)| self.check(*id)).count();
            self.work_off();
        }
        completed
    }

    /// Returns whether the check completed it.
    fn check(&mut self, id: usize) -> bool {
        if !self.waits(id) {
            return false;
        }
        self.log.push((What::Checked, id as u32));
        let holds = self.operations[id].holds;
        if holds {
            self.operations[id].state = State::Triggered;
            self.callback(id);
        }
        holds
    }

    /// Returns whether the operation waits, and its time is not up.
    pub(crate) fn touch(&mut self, id: usize, timeout: u64) -> bool {
        self.moved(id, timeout, |deadline, before| deadline > before)
    }

    pub(crate) fn hasten(&mut self, id: usize, timeout: u64) -> bool {
        self.moved(id, timeout, |deadline, before| deadline < before)
    }

    pub(crate) fn reschedule(&mut self, id: usize, timeout: u64) -> bool {
        self.moved(id, timeout, |_, _| true)
    }

    fn moved(&mut self, id: usize, timeout: u64, moves: impl Fn(u64, u64) -> bool) -> bool {
        let deadline = self.now + timeout;
        let tick = self.now / 2;
        let waits = self.waits(id) && self.now < self.operations[id].deadline;
        let operation = &mut self.operations[id];
        if waits && moves(deadline, operation.deadline) {
            operation.deadline = deadline;
            operation.added = (timeout == 0).then_some(tick);
        }
        waits
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
        self.callback(id);
        self.work_off();
    }

    fn callback(&mut self, id: usize) {
        if self.in_code {
            return self.agenda.push_back(Item::Callback(id));
        }
        self.in_code = true;
        self.call(id);
        self.in_code = false;
    }

    /// Does what was left, for the outermost call.
    fn work_off(&mut self) {
        if self.in_code || self.at_work {
            return;
        }
        self.at_work = true;
        while let Some(item) = self.agenda.pop_front() {
            match item {
                Item::Callback(id) => self.callback(id),
                Item::Trigger(key, line, limit) => {
                    if self.lines.get(&key).copied().unwrap_or(0) == line {
                        let _ = match limit {
                            None => self.trigger(key),
                            Some(limit) => self.trigger_up_to(key, limit),
                        };
                    }
                }
            }
        }
        self.at_work = false;
    }

    fn call(&mut self, id: usize) {
        self.log.push((What::Completed, id as u32));
        match self.operations[id].then {
            Then::Nothing => {}
            Then::Trigger(key) => self.trigger_inside(key, None),
            Then::TriggerUpTo(key, limit) => self.trigger_inside(key, Some(limit)),
            Then::CancelForKey(key) => {
                let cancelled = self.cancel_for_key(key);
                self.log
                    .extend(cancelled.into_iter().map(|id| (What::Dropped, id)));
            }
            Then::Enable(nth, key) => {
                let nth = nth % self.operations.len();
                self.operations[nth].holds = true;
                self.trigger_inside(key, None);
            }
            Then::Add(key, holds) => self.add(vec![key], LATER, holds, Then::Nothing),
            Then::Force(nth) => {
                if let Some(id) = self.nth_handle(nth).filter(|id| self.waits(*id)) {
                    self.end(id, State::Forced);
                }
            }
            Then::Cancel(nth) => {
                if let Some(id) = self.nth_handle(nth).filter(|id| self.waits(*id)) {
                    self.operations[id].state = State::Cancelled;
                    self.log.push((What::Dropped, id as u32));
                }
            }
        }
        if self.operations[id].state == State::Expired {
            self.log.push((What::Expired, id as u32));
        }
        self.log.push((What::Dropped, id as u32));
    }

    fn trigger_inside(&mut self, key: u32, limit: Option<usize>) {
        if limit != Some(0) && self.watched_for(key) > 0 {
            let line = self.lines.get(&key).copied().unwrap_or(0);
            self.agenda.push_back(Item::Trigger(key, line, limit));
        }
        self.log.push((What::Returned, 0));
    }

    /// Returns between which ticks an operation expires in a turn at `at`, if its deadline has
    /// passed then. One that was extended expires as soon as that is seen.
    pub(crate) fn due(&self, id: usize, at: u64) -> Option<(u64, u64)> {
        let operation = &self.operations[id];
        let tick = operation.deadline.div_ceil(2);
        let is_due = operation.deadline <= at;
        let from = operation.added.unwrap_or(tick).min(at / 2);
        (self.waits(id) && is_due).then_some((from, tick))
    }

    /// Returns whether an operation has to expire in a turn.
    pub(crate) fn must_expire(&self, id: usize) -> bool {
        let operation = &self.operations[id];
        let tick = operation.added.unwrap_or(operation.deadline.div_ceil(2));
        self.waits(id) && tick <= self.now / 2
    }

    pub(crate) fn waiting(&self) -> impl Iterator<Item = usize> {
        (0..self.operations.len()).filter(|id| self.waits(*id))
    }

    pub(crate) fn count(&self, state: State) -> usize {
        self.operations
            .iter()
            .filter(|operation| operation.state == state)
            .count()
    }
}

pub(crate) const KEYS: u32 = 6;

/// The timeout, in half milliseconds, of what is added by an operation's code.
pub(crate) const LATER: u64 = 20;

/// What an operation's `on_complete` does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Then {
    Nothing,
    Trigger(u32),
    TriggerUpTo(u32, usize),
    CancelForKey(u32),
    /// Makes the condition of the nth operation true, then triggers a key.
    Enable(usize, u32),
    /// Adds an operation, whose condition may hold.
    Add(u32, bool),
    Force(usize),
    Cancel(usize),
}

/// Operations are chosen by their number, modulo of how many there were, ended ones included. Times
/// are in half milliseconds, so that some lie between two ticks.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Add {
        keys: Vec<u32>,
        timeout: u64,
        holds: bool,
        then: Then,
    },
    Set(usize, bool),
    Trigger(u32),
    TriggerAll(Vec<u32>),
    TriggerUpTo(u32, usize),
    Force(usize),
    Cancel(usize),
    Touch(usize, u64),
    Hasten(usize, u64),
    Reschedule(usize, u64),
    CancelForKey(u32),
    CancelAll,
    ForceAll,
    Advance(u64),
    DropHandle(usize),
    /// The executor queues what it gets from now on.
    Busy,
    WorkOff,
}

/// Returns mostly the same key, so that it has more operations than there are in a block.
fn key(g: &mut Gen) -> u32 {
    (u32::arbitrary(g) % (2 * KEYS)).saturating_sub(KEYS)
}

fn limit(g: &mut Gen) -> usize {
    match u8::arbitrary(g) % 8 {
        0 => 0,
        1 => usize::MAX,
        2..=4 => 1,
        _ => usize::arbitrary(g) % 10,
    }
}

fn keys(g: &mut Gen) -> Vec<u32> {
    (0..1 + u8::arbitrary(g) % 4).map(|_| key(g)).collect()
}

impl Arbitrary for Then {
    fn arbitrary(g: &mut Gen) -> Self {
        match u8::arbitrary(g) % 16 {
            0..=2 => Then::Trigger(key(g)),
            3..=4 => Then::TriggerUpTo(key(g), limit(g)),
            5 => Then::CancelForKey(key(g)),
            6 => Then::Enable(usize::arbitrary(g) % 100, key(g)),
            7..=9 => Then::Add(key(g), u8::arbitrary(g) % 4 == 0),
            10 => Then::Force(usize::arbitrary(g) % 20),
            11 => Then::Cancel(usize::arbitrary(g) % 20),
            _ => Then::Nothing,
        }
    }
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        // Mostly a recent operation: the old ones have ended.
        let nth = usize::arbitrary(g) % 20;
        match u8::arbitrary(g) % 40 {
            0..=12 => {
                let holds = u8::arbitrary(g) % 8 == 0;
                let timeout = u64::arbitrary(g) % 41;
                Step::Add {
                    keys: keys(g),
                    timeout,
                    holds,
                    then: Then::arbitrary(g),
                }
            }
            13..=17 => Step::Set(nth, u8::arbitrary(g) % 4 > 0),
            18 => Step::Trigger(key(g)),
            19..=21 => Step::TriggerUpTo(key(g), limit(g)),
            22 => Step::TriggerAll(keys(g)),
            23 => Step::Force(nth),
            24 => Step::Cancel(nth),
            25 => Step::Touch(nth, u64::arbitrary(g) % 41),
            26 => Step::CancelForKey(key(g)),
            27..=29 => Step::Advance(u64::arbitrary(g) % 11),
            30..=31 => Step::DropHandle(nth),
            32 => Step::Busy,
            33 => Step::CancelAll,
            34 => Step::ForceAll,
            35..=36 => Step::Hasten(nth, u64::arbitrary(g) % 41),
            37..=38 => Step::Reschedule(nth, u64::arbitrary(g) % 41),
            _ => Step::WorkOff,
        }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        let Step::Add {
            keys,
            timeout,
            holds,
            then,
        } = self.clone()
        else {
            return quickcheck::empty_shrinker();
        };
        let mut simpler = Vec::new();
        if then != Then::Nothing {
            simpler.push(Step::Add {
                keys: keys.clone(),
                timeout,
                holds,
                then: Then::Nothing,
            });
        }
        if keys.len() > 1 {
            simpler.push(Step::Add {
                keys: keys[1..].to_vec(),
                timeout,
                holds,
                then,
            });
        }
        Box::new(simpler.into_iter())
    }
}
