//! The coordinator: all groups, their delayed joins and their members' sessions.
//!
//! # Locks
//! A group has one, and no key is triggered, nothing is watched while it is held: `follow` does
//! that afterwards.

use super::join::DelayedJoin;
use super::offsets::Offsets;
use super::state::{Next, State};
use crate::budget::Budget;
use kafka_protocol::ResponseError;
use kafka_protocol::protocol::StrBytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tickwheel::keyed::KeyedTimer;
use tickwheel::purgatory::{DelayedOperation, Purgatory};
use tickwheel::{Timer, TimerEntry};
use tickwheel_prometheus::Metrics;

/// What groups may have.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// For how long the first rebalance of a group waits for more members.
    pub initial_rebalance_delay: Duration,
    pub max_groups: usize,
    pub max_members: usize,
}

pub struct Coordinator {
    pub(super) terms: Terms,
    /// What its groups keep is a part of it.
    pub(super) budget: Arc<Budget>,
    groups: Mutex<HashMap<Arc<str>, Arc<Group>>>,
    pub(super) joins: Purgatory<Arc<str>, DelayedJoin>,
    pub(super) sessions: Sessions,
    /// Makes members' names unique, also among the lives of a broker.
    started: u64,
    next_member: AtomicU64,
}

pub(super) struct Group {
    pub(super) name: Arc<str>,
    pub(super) state: Mutex<State>,
}

/// A session for each group and member: every heartbeat touches it.
pub(super) type Sessions = KeyedTimer<SessionKey, ()>;
type SessionKey = (Arc<str>, StrBytes);

impl Coordinator {
    pub fn new(timer: &Timer, terms: Terms, budget: Arc<Budget>) -> Arc<Self> {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Arc::new_cyclic(|coordinator: &Weak<Self>| {
            let coordinator = Weak::clone(coordinator);
            Coordinator {
                terms,
                budget,
                groups: Mutex::default(),
                joins: Purgatory::new(timer),
                sessions: KeyedTimer::new(timer, move |(group, member): SessionKey, ()| {
                    if let Some(coordinator) = coordinator.upgrade() {
                        coordinator.on_session_end(&group, member);
                    }
                }),
                started: started.as_millis() as u64,
                next_member: AtomicU64::new(1),
            }
        })
    }

    pub(super) fn get(&self, name: &str) -> Option<Arc<Group>> {
        self.groups.lock().get(name).cloned()
    }

    pub(super) fn get_or_create(&self, name: &str) -> Result<Arc<Group>, ResponseError> {
        if name.is_empty() {
            return Err(ResponseError::InvalidGroupId);
        }
        let mut groups = self.groups.lock();
        if let Some(group) = groups.get(name) {
            return Ok(Arc::clone(group));
        }
        if groups.len() >= self.terms.max_groups {
            groups.retain(|_, group| !group.is_forgotten());
        }
        if groups.len() >= self.terms.max_groups {
            return Err(ResponseError::CoordinatorNotAvailable);
        }
        let name: Arc<str> = name.into();
        let group = Arc::new(Group { name: Arc::clone(&name), state: Mutex::default() });
        groups.insert(name, Arc::clone(&group));
        Ok(group)
    }

    pub(super) fn all(&self) -> Vec<Arc<Group>> {
        self.groups.lock().values().cloned().collect()
    }

    /// Deletes a group that has no members.
    pub(super) fn delete_one(&self, name: &str) -> Result<(), ResponseError> {
        let mut groups = self.groups.lock();
        let group = groups.get(name).ok_or(ResponseError::GroupIdNotFound)?;
        let mut state = group.state.lock();
        if !state.members.is_empty() {
            return Err(ResponseError::NonEmptyGroup);
        }
        state.offsets = Offsets::default(); // Somebody may be about to commit to it.
        drop(state);
        groups.remove(name);
        Ok(())
    }

    /// Forgets a topic that was deleted, and what was committed for it.
    pub fn forget_topic(&self, topic: &str) {
        self.all().iter().for_each(|group| group.state.lock().offsets.forget(topic));
    }

    pub(super) fn new_member_id(&self, client_id: &str) -> StrBytes {
        let number = self.next_member.fetch_add(1, Ordering::Relaxed);
        StrBytes::from_string(format!("{client_id}-{:x}-{number}", self.started))
    }

    /// Applies the consequences of a change to a group; to be called without the group's lock.
    pub(super) fn follow(&self, group: &Arc<Group>, next: Next) {
        match next {
            Next::Nothing => {}
            Next::Trigger => {
                self.joins.check_and_complete(&group.name);
            }
            Next::Watch { timeout } => self.watch_join(group, timeout, false),
            Next::WatchFirst => {
                self.watch_join(group, self.terms.initial_rebalance_delay, true);
            }
        }
    }

    fn watch_join(&self, group: &Arc<Group>, timeout: Duration, is_first: bool) {
        let sessions = self.sessions.clone();
        let join = DelayedJoin { group: Arc::clone(group), sessions, is_first };
        let keys = [Arc::clone(&group.name)];
        if let Err(refused) = self.joins.try_complete_else_watch(join, timeout, &keys) {
            // As many wait as may: with those who are there.
            refused.into_operation().on_complete();
        }
    }

    fn on_session_end(&self, group: &str, member: StrBytes) {
        let Some(group) = self.get(group) else { return };
        let mut state = group.state.lock();
        if state.expected.remove(&member) {
            return;
        }
        let Some(known) = state.members.get(&member) else { return };
        if known.is_waiting() {
            // It waits for us, with its connection open: that is life enough.
            let session = TimerEntry::after(known.session_timeout, ());
            let _ = self.sessions.schedule((Arc::clone(&group.name), member), session);
            return;
        }
        let timeout = known.session_timeout;
        let next = state.remove(&member);
        drop(state);
        tracing::info!(group = &*group.name, member = &*member, ?timeout, "session has expired");
        self.follow(&group, next);
    }

    pub fn groups(&self) -> usize {
        self.groups.lock().len()
    }

    /// Returns how many delayed joins and how many sessions there are.
    pub fn waiting(&self) -> (usize, usize) {
        (self.joins.delayed(), self.sessions.len())
    }

    /// Shows the joins and the sessions.
    pub fn register(&self, metrics: &Metrics) {
        metrics.purgatory("join", &self.joins);
        metrics.keyed_timer("sessions", &self.sessions);
    }

    /// Sends all away who wait, and returns how many joins and sessions were pending.
    pub fn shutdown(&self) -> (usize, usize) {
        for group in self.groups.lock().values() {
            group.state.lock().send_away();
        }
        (self.joins.shutdown().len(), self.sessions.cancel_all().len())
    }
}

impl Group {
    fn is_forgotten(&self) -> bool {
        let state = self.state.lock();
        state.size() == 0 && state.offsets.is_empty()
    }
}
