//! Locks in Redis that are renewed while they are held, after Redisson's: taking and giving back.
//!
//! A lock is a key with a token, and a lease for its time to live. Each taking has a token of its
//! own, so nobody renews or gives back what somebody else holds meanwhile, nor what the same
//! process has taken again.

pub mod holder;
mod redis_link;
mod renewer;
pub mod server;

use crate::locks::redis_link::{RELEASE, RedisLink};
use crate::locks::renewer::{Counters, Renewer, Store};
use redis::{Client, RedisError, Script};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel::lease::{Lease, LeaseTerms, Leases};

/// Takes locks, and renews them a third of their lease after they were taken or renewed.
pub struct Locks {
    timer: Timer,
    leases: Leases<LockId>,
    lease: Duration,
    link: Arc<RedisLink>,
    counters: Arc<Counters>,
    /// What tells the tokens of this process from others', and from each other.
    process: u64,
    taken: AtomicU64,
}

/// A taking of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LockId {
    name: Arc<str>,
    token: Arc<str>,
}

/// A lock that was taken. Dropped, it is renewed no more, and free when its lease has run out.
#[must_use = "dropped at once, it is not renewed"]
pub struct Lock {
    lease: Lease<LockId>,
    link: Arc<RedisLink>,
}

/// Why nobody knows whether a lock was taken. If it was, it is free when its lease has run out.
#[derive(Debug)]
pub enum LockError {
    Redis(RedisError),
    /// The timer was shut down.
    Timer,
}

/// What has become of renewals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls to Redis, of many renewals each.
    pub calls: u64,
    pub renewed: u64,
    /// Renewals that had no answer, and were tried again.
    pub failed: u64,
}

impl Locks {
    /// Creates the locks. `lost` is called once for each lock that was lost, with its name, on the
    /// timer's executor.
    pub fn new(
        timer: &Timer,
        client: &Client,
        lease: Duration,
        lost: impl Fn(&str) + Send + Sync + 'static,
    ) -> Self {
        let limit = lease / 6;
        let counters = Arc::new(Counters::default());
        // It has a connection of its own: renewal waits for nobody.
        let link = RedisLink::new(client, limit);
        let batches = Renewer::start(link, lease, Arc::clone(&counters));
        let leases = Leases::new(timer, LeaseTerms::new(lease), Store::new(batches, lost));
        Locks {
            timer: timer.clone(),
            leases,
            lease,
            link: Arc::new(RedisLink::new(client, limit)),
            counters,
            process: RandomState::new().hash_one(std::process::id()),
            taken: AtomicU64::new(0),
        }
    }

    /// Takes a lock if it is free.
    pub fn try_lock(&self, name: &str) -> Result<Option<Lock>, LockError> {
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        let token = format!("{:x}-{number}", self.process);
        // The lease counts from here: Redis can't have begun to count earlier.
        let since = self.timer.now();
        let mut set = redis::cmd("SET");
        set.arg(name).arg(&token).arg("NX").arg("PX").arg(self.lease.as_millis() as u64);
        let taken: Option<String> = self.link.call(|connection| set.query(connection))?;
        if taken.is_none() {
            return Ok(None);
        }
        let id = LockId { name: name.into(), token: token.into() };
        let lease = self.leases.hold_since(id, since).map_err(|_| LockError::Timer)?;
        Ok(Some(Lock { lease, link: Arc::clone(&self.link) }))
    }

    pub fn counts(&self) -> Counts {
        self.counters.counts()
    }
}

impl Lock {
    /// Returns whether the lock is held: check it before you do what the lock protects.
    pub fn is_held(&self) -> bool {
        self.lease.is_held()
    }

    /// Gives the lock back. Returns whether it was held until now; if not, it may be somebody
    /// else's.
    pub fn unlock(self) -> Result<bool, LockError> {
        let LockId { name, token } = self.lease.key().clone();
        if !self.lease.release() {
            return Ok(false);
        }
        let release = Script::new(RELEASE);
        let mut release = release.key(&*name);
        release.arg(&*token);
        Ok(self.link.call(|connection| release.invoke(connection))?)
    }
}

impl From<RedisError> for LockError {
    fn from(error: RedisError) -> Self {
        LockError::Redis(error)
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockError::Redis(error) => error.fmt(f),
            LockError::Timer => f.write_str("the timer renews no more leases"),
        }
    }
}

impl std::error::Error for LockError {}
