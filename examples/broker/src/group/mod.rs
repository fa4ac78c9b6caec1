//! Groups: the coordinator has all of them, their delayed joins and their members' sessions.

mod requests;
mod state;

use self::state::{Next, State};
use crate::metadata::Ids;
use kafka_protocol::ResponseError;
use kafka_protocol::protocol::StrBytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel::keyed::KeyedTimer;
use tickwheel::purgatory::{DelayedOperation, Purgatory};

/// For how long the first rebalance of a group waits for more members.
const INITIAL_REBALANCE_DELAY: Duration = Duration::from_millis(500);
/// How many groups there may be. Beyond this, one without members is forgotten for a new one.
const MAX_GROUPS: usize = 200;

pub(crate) struct Coordinator {
    /// Under one lock, which is never held when a key is triggered or an operation is watched:
    /// `follow` does that afterwards.
    groups: Mutex<Groups>,
    /// At most one for each group, on its name.
    joins: Purgatory<Arc<str>, DelayedJoin>,
    /// One for each member; every sign of life touches it.
    sessions: KeyedTimer<Session, ()>,
    member_ids: Ids,
    me: Weak<Coordinator>,
}

type Groups = HashMap<Arc<str>, State>;
/// A group and its member.
type Session = (Arc<str>, StrBytes);

impl Coordinator {
    pub(crate) fn new(timer: &Timer) -> Arc<Self> {
        Arc::new_cyclic(|me: &Weak<Self>| {
            let coordinator = Weak::clone(me);
            let expired = move |(group, member): Session, ()| {
                if let Some(coordinator) = coordinator.upgrade() {
                    coordinator.end_session(&group, &member);
                }
            };
            Coordinator {
                groups: Mutex::default(),
                joins: Purgatory::new(timer),
                sessions: KeyedTimer::new(timer, expired),
                member_ids: Ids::new(),
                me: Weak::clone(me),
            }
        })
    }

    /// Returns a group, which is created if need be.
    fn open<'a>(&self, groups: &'a mut Groups, name: &str) -> Result<&'a mut State, ResponseError> {
        if name.is_empty() || name.len() > 249 {
            return Err(ResponseError::InvalidGroupId);
        }
        if groups.len() >= MAX_GROUPS && !groups.contains_key(name) {
            // Of those without members one that has committed nothing, else the one unused longest.
            let empty = groups.values().filter(|group| group.members.is_empty());
            let oldest = empty.min_by_key(|group| (!group.offsets.is_empty(), group.used));
            let oldest = oldest.map(|group| Arc::clone(&group.name));
            groups.remove(&oldest.ok_or(ResponseError::CoordinatorNotAvailable)?);
        }
        let name: Arc<str> = name.into();
        let group = groups
            .entry(Arc::clone(&name))
            .or_insert_with(|| State::new(name));
        group.used = self.member_ids.next();
        Ok(group)
    }

    /// Puts a member's session off.
    fn beat(&self, group: &State, id: &StrBytes) {
        if let Some(member) = group.members.get(id) {
            let session = (Arc::clone(&group.name), id.clone());
            self.sessions.touch(&session, member.session_timeout);
        }
    }

    /// Begins a member's session, or begins it anew.
    fn begin_session(&self, group: &State, id: &StrBytes, timeout: Duration) -> bool {
        let session = (Arc::clone(&group.name), id.clone());
        self.sessions.add(session, timeout, ()).is_ok()
    }

    /// Begins anew the session of each member that waits for an assignment: the change that
    /// follows may answer the member.
    fn keep_syncing(&self, group: &State) {
        for (id, member) in group
            .members
            .iter()
            .filter(|(_, member)| member.is_syncing())
        {
            self.begin_session(group, id, member.session_timeout);
        }
    }

    fn end_session(&self, name: &Arc<str>, id: &StrBytes) {
        let mut groups = self.groups.lock();
        let Some(group) = groups.get_mut(name) else {
            return;
        };
        let Some(member) = group.members.get(id) else {
            return;
        };
        if member.is_waiting() {
            // It waits for us, with its connection open: that is life enough.
            self.begin_session(group, id, member.session_timeout);
            return;
        }
        if self.sessions.contains(&(Arc::clone(name), id.clone())) {
            return; // The member was answered meanwhile, and its session begun anew.
        }
        self.keep_syncing(group);
        let next = group.remove(id);
        drop(groups);
        self.follow(name, next);
    }

    /// Applies the consequences of a change to a group.
    fn follow(&self, group: &Arc<str>, next: Next) {
        let (timeout, is_first) = match next {
            Next::Nothing => return,
            Next::Trigger => {
                self.joins.check_and_complete(group);
                return;
            }
            Next::Watch { timeout } => (timeout, false),
            Next::WatchFirst => (INITIAL_REBALANCE_DELAY, true),
        };
        let coordinator = Weak::clone(&self.me);
        let join = DelayedJoin {
            coordinator,
            group: Arc::clone(group),
            is_first,
        };
        let refused = self
            .joins
            .try_complete_else_watch(join, timeout, &[Arc::clone(group)]);
        if let Err(refused) = refused {
            refused.into_operation().on_complete(); // The timer was shut down.
        }
    }

    fn all_have_joined(&self, group: &str) -> bool {
        self.groups
            .lock()
            .get(group)
            .is_none_or(State::all_have_joined)
    }

    /// Begins a new generation of those who have joined.
    fn begin_generation(&self, group: &Arc<str>) {
        let mut groups = self.groups.lock();
        let Some(state) = groups.get_mut(group) else {
            return;
        };
        for gone in state.begin_generation() {
            self.sessions.cancel(&(Arc::clone(group), gone));
        }
        for (id, member) in &state.members {
            self.begin_session(state, id, member.session_timeout);
        }
    }

    /// Returns how many delayed joins and how many sessions there are.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        (self.joins.len(), self.sessions.len())
    }

    /// Forgets all members, which sends those away who wait.
    pub(crate) fn shutdown(&self) {
        drop(self.joins.shutdown());
        self.groups.lock().clear();
        self.sessions.cancel_all();
    }
}

/// A rebalance: waits on its group's name, for all members. They wait for it, each on its own
/// connection.
struct DelayedJoin {
    coordinator: Weak<Coordinator>,
    group: Arc<str>,
    /// The first one of a group waits for its whole time, so that those who come soon after are in
    /// it, too.
    is_first: bool,
}

impl DelayedOperation for DelayedJoin {
    fn try_complete(&mut self) -> bool {
        let coordinator = self.coordinator.upgrade();
        !self.is_first && coordinator.is_none_or(|it| it.all_have_joined(&self.group))
    }

    /// Also when the time is up: then the members that have not joined are out.
    fn on_complete(&mut self) {
        if let Some(coordinator) = self.coordinator.upgrade() {
            coordinator.begin_generation(&self.group);
        }
    }
}
