//! Keys: their values, and their deadlines.

use super::{Call, NOT_AN_INTEGER, Outcome, Refusal, SYNTAX, wrong_count};
use crate::connections::matches;
use crate::resp::number;
use crate::store::{FOREVER, Value};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tickwheel::keyed::Entry;

/// The longest time to a deadline: 500 years, because a timer has no deadline beyond 584.
const LONGEST: Duration = Duration::from_secs(500 * 365 * 24 * 3600);

/// The scripts with which clients release a lock: the one in Redis' manual, without white space,
/// and the digest of redis-py's.
const RELEASES: [&str; 2] = [
    "ifredis.call('get',KEYS[1])==ARGV[1]thenreturnredis.call('del',KEYS[1])elsereturn0end",
    "c3f8721cbb97f72bc19e972846bd7aaf91901658",
];

pub(super) fn get(call: &mut Call<'_>) -> Outcome {
    tell(call, 1);
    Ok(())
}

pub(super) fn mget(call: &mut Call<'_>) -> Outcome {
    call.reply.array(call.args.len() - 1);
    (1..call.args.len()).for_each(|index| tell(call, index));
    Ok(())
}

/// GETEX. A date that is over removes the key, as with EXPIREAT.
pub(super) fn get_and_reschedule(call: &mut Call<'_>) -> Outcome {
    let options = Options::read(&call.args[2..], "PERSIST")?;
    let Options {
        time,
        is_untimed,
        present: None,
        get: false,
    } = options
    else {
        return Err(SYNTAX.into());
    };
    let store = &call.session.server.store;
    let key = &call.args[1];
    // While this is held, the key does not expire: it has the new deadline, or the reply is null.
    let Some(entry) = store.keys.find(&**key) else {
        call.reply.null();
        return Ok(());
    };
    let ttl = match time {
        Some((unit, digits)) => Some(time_to_live(call.name, unit, digits)?),
        None => is_untimed.then_some(FOREVER),
    };
    call.reply.bulk(entry.get());
    if let Some(ttl) = ttl {
        store.reschedule_entry(entry, key, ttl);
    }
    Ok(())
}

fn tell(call: &mut Call<'_>, index: usize) {
    match call.session.server.store.keys.find(&*call.args[index]) {
        Some(entry) => call.reply.bulk(entry.get()),
        None => call.reply.null(),
    }
}

/// The options of SET, of which GETEX has those of time.
#[derive(Default)]
struct Options<'a> {
    /// A unit, and how many of them.
    time: Option<(&'static str, &'a [u8])>,
    /// SET's KEEPTTL, or GETEX's PERSIST: neither goes with a time.
    is_untimed: bool,
    /// Whether the key must be there, or must not be.
    present: Option<bool>,
    /// The reply is the former value.
    get: bool,
}

impl<'a> Options<'a> {
    fn read(words: &'a [Vec<u8>], untimed: &str) -> Result<Self, Refusal> {
        let Options {
            mut time,
            mut is_untimed,
            mut present,
            mut get,
        } = Options::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
            match present {
                None | Some(false) if is("NX") => present = Some(false),
                None | Some(true) if is("XX") => present = Some(true),
                _ if is("GET") => get = true,
                _ if is(untimed) && time.is_none() => is_untimed = true,
                _ => {
                    let unit = ["EX", "PX", "EXAT", "PXAT"]
                        .into_iter()
                        .find(|unit| is(unit));
                    let next = unit
                        .zip(words.next())
                        .filter(|_| !is_untimed)
                        .ok_or(SYNTAX)?;
                    if time.is_some_and(|(former, _)| former != next.0) {
                        return Err(SYNTAX.into());
                    }
                    time = Some((next.0, &**next.1));
                }
            }
        }
        Ok(Options {
            time,
            is_untimed,
            present,
            get,
        })
    }
}

pub(super) fn set(call: &mut Call<'_>) -> Outcome {
    let Options {
        time,
        is_untimed,
        present,
        get,
    } = Options::read(&call.args[3..], "KEEPTTL")?;
    let ttl = match time {
        Some((unit, digits)) => Some(time_to_live(call.name, unit, digits)?),
        None => (!is_untimed).then_some(FOREVER),
    };
    let key = call.take(1);
    let value = call.take(2);
    let store = &call.session.server.store;
    // From here until it is put, neither the key nor its absence can change: it does not expire.
    let entry = store.keys.entry(key);
    let former = match &entry {
        Entry::Occupied(entry) => Some(entry.get()),
        Entry::Vacant(_) => None,
    };
    let is_wanted = present.is_none_or(|present| present == former.is_some());
    let former: Option<Value> = former.filter(|_| get).cloned();
    if is_wanted {
        store.put(entry, value, ttl)?;
    }
    match former {
        Some(value) => call.reply.bulk(value),
        None if is_wanted && !get => call.reply.ok(),
        None => call.reply.null(),
    }
    Ok(())
}

/// SETEX and PSETEX.
pub(super) fn set_for(call: &mut Call<'_>) -> Outcome {
    let unit = if call.unit_ms() == 1 { "PX" } else { "EX" };
    let ttl = time_to_live(call.name, unit, &call.args[2])?;
    put(call, 1, 3, ttl)?;
    call.reply.ok();
    Ok(())
}

pub(super) fn mset(call: &mut Call<'_>) -> Outcome {
    if call.args.len() % 2 == 0 {
        return Err(wrong_count(call.name));
    }
    (1..call.args.len())
        .step_by(2)
        .try_for_each(|key| put(call, key, key + 1, FOREVER))?;
    call.reply.ok();
    Ok(())
}

fn put(call: &mut Call<'_>, key: usize, value: usize, ttl: Duration) -> Outcome {
    let key = call.take(key);
    let value = call.take(value);
    Ok(call
        .store()
        .put(call.store().keys.entry(key), value, Some(ttl))?)
}

/// INCR and INCRBY.
pub(super) fn add(call: &mut Call<'_>) -> Outcome {
    let by = call
        .args
        .get(2)
        .map_or(Some(1), |by| number(by))
        .ok_or(NOT_AN_INTEGER)?;
    let key = call.take(1);
    let entry = call.store().keys.entry(key);
    let former = match &entry {
        Entry::Occupied(entry) => number(entry.get()).ok_or(NOT_AN_INTEGER)?,
        Entry::Vacant(_) => 0,
    };
    let sum = former
        .checked_add(by)
        .ok_or("ERR increment or decrement would overflow")?;
    call.store()
        .put(entry, sum.to_string().into_bytes().into(), None)?;
    call.reply.integer(sum);
    Ok(())
}

/// Reads an option's time. Only a date may be over.
fn time_to_live(name: &str, unit: &str, digits: &[u8]) -> Result<Duration, Refusal> {
    let is_date = unit.ends_with("AT");
    let unit_ms = if unit.starts_with('E') { 1000 } else { 1 };
    match milliseconds(name, digits, unit_ms, is_date)? {
        ms @ 1.. => Ok(left(ms, is_date)),
        _ => Err(invalid_time(name)),
    }
}

/// Reads a time in milliseconds, from now on or of the wall clock. Like Redis, refuses one whose
/// date does not fit into 64 bits.
fn milliseconds(name: &str, digits: &[u8], unit_ms: i64, is_date: bool) -> Result<i64, Refusal> {
    let start = if is_date { Duration::ZERO } else { wall() };
    let ms = number(digits).ok_or(NOT_AN_INTEGER)?.checked_mul(unit_ms);
    let ms = ms.filter(|ms| ms.checked_add(start.as_millis() as i64).is_some());
    ms.ok_or_else(|| invalid_time(name))
}

/// Returns how long a key is to live: not at all, if the time is over. A date is one of the wall
/// clock's now: to set that later moves no deadline.
fn left(ms: i64, is_date: bool) -> Duration {
    let time = Duration::from_millis(ms.try_into().unwrap_or(0));
    let start = if is_date { wall() } else { Duration::ZERO };
    time.saturating_sub(start).min(LONGEST)
}

fn invalid_time(name: &str) -> Refusal {
    format!("ERR invalid expire time in '{name}' command").into()
}

fn wall() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

pub(super) fn del(call: &mut Call<'_>) -> Outcome {
    let removed = call.args[1..]
        .iter()
        .filter(|key| call.store().remove(key))
        .count();
    call.reply.integer(removed);
    Ok(())
}

/// EVAL and EVALSHA of a script that releases a lock: removes the key if it has this value.
pub(super) fn release(call: &mut Call<'_>) -> Outcome {
    let script = String::from_utf8_lossy(&call.args[1]).replace('"', "'");
    let script: String = script.split_whitespace().collect();
    let store = call.store();
    let known = RELEASES.contains(&&*script);
    let removed = match &call.args[2..] {
        [count, key, token] if known && count == b"1" => {
            let holds = store
                .keys
                .find(&**key)
                .is_some_and(|entry| **entry.get() == **token);
            holds && store.remove(key) // Between the two, the key can only expire.
        }
        _ => return Err("NOSCRIPT Only scripts that release a lock are known".into()),
    };
    call.reply.integer(i64::from(removed));
    Ok(())
}

pub(super) fn exists(call: &mut Call<'_>) -> Outcome {
    let keys = &call.store().keys;
    let found = call.args[1..]
        .iter()
        .filter(|key| keys.contains(key.as_slice()))
        .count();
    call.reply.integer(found);
    Ok(())
}

/// EXPIRE, PEXPIRE, EXPIREAT and PEXPIREAT. A time that is over removes the key, and nobody hears
/// of that.
pub(super) fn expire(call: &mut Call<'_>) -> Outcome {
    let is_date = call.name.ends_with("at");
    let ms = milliseconds(call.name, &call.args[2], call.unit_ms(), is_date)?;
    let found = call.store().reschedule(&call.args[1], left(ms, is_date));
    call.reply.integer(i64::from(found));
    Ok(())
}

pub(super) fn persist(call: &mut Call<'_>) -> Outcome {
    let entry = call
        .store()
        .keys
        .find(&*call.args[1])
        .filter(|entry| entry.deadline().is_some());
    let found = entry.map(|mut entry| entry.reschedule(FOREVER)).is_some();
    call.reply.integer(i64::from(found));
    Ok(())
}

/// TTL and PTTL: -1 if the key has no deadline, -2 if it is not there.
pub(super) fn ttl(call: &mut Call<'_>) -> Outcome {
    let store = call.store();
    let left = match store
        .keys
        .find(&*call.args[1])
        .map(|entry| entry.deadline())
    {
        None => -2,
        Some(None) => -1,
        Some(Some(deadline)) => {
            // What is left is not nothing.
            let ms = deadline
                .saturating_duration_since(store.timer.now())
                .as_nanos()
                .div_ceil(1_000_000) as i64;
            (ms + call.unit_ms() / 2) / call.unit_ms()
        }
    };
    call.reply.integer(left);
    Ok(())
}

/// Scans at least COUNT keys, and at most 1023 more.
pub(super) fn scan(call: &mut Call<'_>) -> Outcome {
    let cursor = std::str::from_utf8(&call.args[1])
        .ok()
        .and_then(|digits| digits.parse().ok());
    let mut place = Some(cursor.ok_or("ERR invalid cursor")?);
    let (mut pattern, mut wanted): (&[u8], i64) = (b"*", 10);
    for option in call.args[2..].chunks(2) {
        match option {
            [name, value] if name.eq_ignore_ascii_case(b"MATCH") => pattern = value,
            [name, value] if name.eq_ignore_ascii_case(b"COUNT") => {
                wanted = number(value).ok_or(NOT_AN_INTEGER)?;
            }
            _ => return Err(SYNTAX.into()),
        }
    }
    if wanted < 1 {
        return Err(SYNTAX.into());
    }
    let mut found = call.session.server.reply(Vec::new(), false);
    let mut count = 0;
    let mut seen = 0;
    while let Some(from) = place.filter(|_| seen < wanted && !found.is_overflown) {
        place = call.store().visit_from(from, |key| {
            seen += 1;
            if matches(pattern, key) {
                count += 1;
                found.bulk(key);
            }
        });
    }
    call.reply.array(2);
    call.reply.bulk(place.unwrap_or(0).to_string());
    call.reply.array(count);
    call.reply.append(found);
    Ok(())
}

pub(super) fn dbsize(call: &mut Call<'_>) -> Outcome {
    let keys = call.store().keys.len();
    call.reply.integer(keys);
    Ok(())
}

/// Removes all keys, whether ASYNC or SYNC.
pub(super) fn flushdb(call: &mut Call<'_>) -> Outcome {
    match &call.args[1..] {
        [] => {}
        [how]
            if [&b"ASYNC"[..], b"SYNC"]
                .iter()
                .any(|it| how.eq_ignore_ascii_case(it)) => {}
        _ => return Err(SYNTAX.into()),
    }
    call.store().clear();
    call.reply.ok();
    Ok(())
}
