//! Locks in Redis that are renewed while they are held, after Redisson's.
//!
//! A lock is a key with a token, and a lease for its time to live. Each taking has a token of its
//! own, so nobody renews or gives back what somebody else holds meanwhile, nor what the same
//! process has taken again.

use redis::{Client, Connection, RedisResult, Script};
use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_leases::{Lease, LeaseStore, LeaseTerms, Leases, Renewal};

/// `KEYS`: locks. `ARGV`: the lease in milliseconds, then each lock's token. Answers with 1 for
/// each that was renewed, and 0 for each that this token does not hold.
const RENEW: &str = r"
local renewed = {}
for i, lock in ipairs(KEYS) do
    if redis.call('GET', lock) == ARGV[i + 1] then
        renewed[i] = redis.call('PEXPIRE', lock, ARGV[1])
    else
        renewed[i] = 0
    end
end
return renewed";

/// `KEYS`: a lock. `ARGV`: its token. Answers whether it was held by that.
const RELEASE: &str = r"
if redis.call('GET', KEYS[1]) == ARGV[1] then
    return redis.call('DEL', KEYS[1])
end
return 0";

/// Takes locks, and renews them a third of their lease after they were taken or renewed.
pub struct Locks {
    timer: Timer,
    leases: Leases<LockId>,
    lease: Duration,
    link: Arc<RedisLink>,
    counts: Arc<Counts>,
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

/// What has become of renewals.
#[derive(Default)]
pub struct Counts {
    pub renewed: AtomicU64,
    /// They had no answer, and are tried again.
    pub failed: AtomicU64,
}

impl Locks {
    /// Creates the locks. `lease` must be a whole number of milliseconds, at least one: Redis knows
    /// no fractions, so it would end a lease before this process does. `lost` is called once for
    /// each lock that was lost, with its name, on the timer's executor. After a shutdown of the
    /// timer, `try_lock` may call it.
    pub fn new(
        timer: &Timer,
        client: &Client,
        lease: Duration,
        lost: impl Fn(&str) + Send + Sync + 'static,
    ) -> Self {
        let link = || RedisLink {
            client: client.clone(),
            limit: lease / 6,
            last: Mutex::default(),
        };
        let counts = Arc::new(Counts::default());
        let (batches, waiting) = channel();
        // It has a connection of its own: renewal waits for nobody.
        let renewer = link();
        let counted = Arc::clone(&counts);
        // Ends with the store, which sends the batches.
        thread::spawn(move || renew_all(&renewer, lease, &waiting, &counted));
        let store = Store {
            batches,
            lost: Box::new(lost),
        };
        Locks {
            timer: timer.clone(),
            leases: Leases::new(timer, LeaseTerms::new(lease), store),
            lease,
            link: Arc::new(link()),
            counts,
            process: RandomState::new().hash_one(std::process::id()),
            taken: AtomicU64::new(0),
        }
    }

    /// Takes a lock if it is free.
    ///
    /// # Errors
    /// Nobody knows whether it was taken. If it was, it is free when its lease has run out.
    pub fn try_lock(&self, name: &str) -> Result<Option<Lock>, Box<dyn Error>> {
        let number = self.taken.fetch_add(1, Relaxed);
        let token = format!("{:x}-{number}", self.process);
        // The lease counts from here: Redis can't have begun to count earlier.
        let since = self.timer.now();
        let mut set = redis::cmd("SET");
        set.arg(name)
            .arg(&token)
            .arg("NX")
            .arg("PX")
            .arg(self.lease.as_millis() as u64);
        let taken: Option<String> = self.link.call(|connection| set.query(connection))?;
        if taken.is_none() {
            return Ok(None);
        }
        let id = LockId {
            name: name.into(),
            token: token.into(),
        };
        let lease = self
            .leases
            .hold_since(id, since)
            .map_err(|_| "the timer is full, or was shut down")?;
        Ok(Some(Lock {
            lease,
            link: Arc::clone(&self.link),
        }))
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}

impl Lock {
    /// Returns whether the lock is held: check it before you do what the lock protects.
    pub fn is_held(&self) -> bool {
        self.lease.is_held()
    }

    /// Gives the lock back. Returns whether it was held until now; if not, it may be somebody
    /// else's.
    pub fn unlock(self) -> RedisResult<bool> {
        let LockId { name, token } = self.lease.key().clone();
        if !self.lease.release() {
            return Ok(false); // Lost: it may be somebody else's.
        }
        let release = Script::new(RELEASE);
        let mut release = release.key(&*name);
        release.arg(&*token);
        self.link.call(|connection| release.invoke(connection))
    }
}

type Batch = Vec<Renewal<LockId>>;

/// What the watchdog of the leases sees: hands batches on, for Redis may be slow, and the timer
/// does not wait for it.
struct Store {
    batches: Sender<Batch>,
    lost: Box<dyn Fn(&str) + Send + Sync>,
}

impl LeaseStore<LockId> for Store {
    fn renew(&self, batch: Batch) {
        // Without a renewer the batch is dropped, and so has failed.
        let _ = self.batches.send(batch);
    }

    fn lost(&self, lock: LockId) {
        (self.lost)(&lock.name);
    }
}

fn renew_all(link: &RedisLink, lease: Duration, batches: &Receiver<Batch>, counts: &Counts) {
    let script = Script::new(RENEW);
    // It is unknown whether they were renewed: the leases try again.
    let fail = |batch: Batch| {
        counts.failed.fetch_add(batch.len() as u64, Relaxed);
        batch.into_iter().for_each(Renewal::failed);
    };
    for batch in batches {
        let mut renew = script.arg(lease.as_millis() as u64);
        for renewal in &batch {
            renew.key(&*renewal.key().name).arg(&*renewal.key().token);
        }
        match link.call(|connection| renew.invoke::<Vec<bool>>(connection)) {
            Ok(renewed) => {
                for (renewal, renewed) in batch.into_iter().zip(renewed) {
                    counts.renewed.fetch_add(renewed.into(), Relaxed);
                    if renewed {
                        renewal.renewed()
                    } else {
                        renewal.gone()
                    }
                }
            }
            Err(_) => {
                fail(batch);
                // What waits behind it would run into the same, one after the other.
                batches.try_iter().for_each(fail);
            }
        }
    }
}

/// A connection that is made again after a failure.
struct RedisLink {
    client: Client,
    /// How long Redis may take to answer.
    limit: Duration,
    last: Mutex<Option<Connection>>,
}

impl RedisLink {
    /// Calls Redis; one call at a time. A connection that has failed is not used again: its next
    /// answer might be to the call before. One that was closed since it was used last is no failure
    /// but replaced; so a call may be made twice.
    fn call<R>(&self, call: impl Fn(&mut Connection) -> RedisResult<R>) -> RedisResult<R> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut connection) = last.take() {
            match call(&mut connection) {
                Err(error) if error.is_connection_dropped() => {}
                Err(error) => return Err(error),
                Ok(answer) => {
                    *last = Some(connection);
                    return Ok(answer);
                }
            }
        }
        let mut connection = self.client.get_connection_with_timeout(self.limit)?;
        connection.set_read_timeout(Some(self.limit))?;
        connection.set_write_timeout(Some(self.limit))?;
        let answer = call(&mut connection)?;
        *last = Some(connection);
        Ok(answer)
    }
}
