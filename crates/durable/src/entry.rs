//! What is scheduled.

use crate::error::Error;
use crate::time::StoreTime;
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

/// The longest key, tag or namespace, in bytes: it stands in an index.
const LONGEST_NAME: usize = 512;
/// The longest payload, in bytes: a batch of the longest still fits in memory and in one message.
const LONGEST_PAYLOAD: usize = 1 << 20;

/// When a timer is due: at a moment, or some time from now by the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At this moment of the store's clock. What has passed is due now.
    At(SystemTime),
    /// This long after the call, by the store's clock, whatever this machine's shows. Longer than
    /// until the year 5138 is until then.
    After(Duration),
}

impl From<SystemTime> for When {
    fn from(time: SystemTime) -> Self {
        When::At(time)
    }
}

impl From<Duration> for When {
    fn from(delay: Duration) -> Self {
        When::After(delay)
    }
}

impl When {
    /// Resolves it, given bounds for what the store's clock shows. What has passed becomes the
    /// present: the sweeps that find what was missed need not look far back for it.
    pub(crate) fn resolve(self, now: RangeInclusive<StoreTime>) -> StoreTime {
        match self {
            When::At(time) => StoreTime::from(time).max(*now.start()),
            When::After(delay) => now.end().plus(delay),
        }
    }
}

/// A timer to be scheduled: when it is due, what it carries, and by what it can be found again.
///
/// ```
/// use std::time::Duration;
/// use tickwheel_durable::Entry;
///
/// let reminder = Entry::keyed("cart-7", Duration::from_secs(3600), "you left something");
/// let reminder = reminder.tag("customer-3");
/// // Cheaper, where nobody will cancel it by name:
/// let message = Entry::unkeyed(Duration::from_millis(250), [1, 2, 3]);
/// # drop((reminder, message));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub(crate) key: Option<String>,
    pub(crate) tag: Option<String>,
    pub(crate) when: When,
    pub(crate) payload: Vec<u8>,
}

impl Entry {
    /// Returns an entry with a key, of which there is at most one in a namespace: to schedule it
    /// again replaces it. Keys are at most 512 bytes, without a zero byte.
    pub fn keyed(
        key: impl Into<String>,
        when: impl Into<When>,
        payload: impl Into<Vec<u8>>,
    ) -> Self {
        Entry { key: Some(key.into()), ..Entry::unkeyed(when, payload) }
    }

    /// Returns an entry without a key: cheaper, but only its [tag](Self::tag) can cancel it.
    pub fn unkeyed(when: impl Into<When>, payload: impl Into<Vec<u8>>) -> Self {
        Entry { key: None, tag: None, when: when.into(), payload: payload.into() }
    }

    /// Sets the tag by which many timers can be cancelled at once; at most 512 bytes, without a
    /// zero byte.
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.key.iter().chain(&self.tag).try_for_each(|name| check_name(name))?;
        check_payload(&self.payload)
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    match name.len() <= LONGEST_NAME && !name.contains('\0') {
        true => Ok(()),
        false => Err(Error::BadName(name.to_owned())),
    }
}

pub(crate) fn check_payload(payload: &[u8]) -> Result<(), Error> {
    match payload.len() <= LONGEST_PAYLOAD {
        true => Ok(()),
        false => Err(Error::PayloadTooLong(payload.len())),
    }
}
