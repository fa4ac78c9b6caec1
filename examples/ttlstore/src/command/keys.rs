//! Keys and their deadlines, whatever their values.

use super::strings::milliseconds;
use super::{Call, NOT_AN_INTEGER, Outcome, SYNTAX};
use crate::glob;
use crate::request::number;
use crate::store::FOREVER;
use std::time::Duration;

pub(super) fn del(call: &mut Call<'_>) -> Outcome {
    let removed = call.args[1..].iter().filter(|key| call.store().remove(key)).count();
    call.reply.integer(removed);
    Ok(())
}

pub(super) fn exists(call: &mut Call<'_>) -> Outcome {
    let found = call.args[1..].iter().filter(|key| call.store().find(key).is_some()).count();
    call.reply.integer(found);
    Ok(())
}

/// EXPIRE and PEXPIRE. A time that is over removes the key, and nobody hears of that.
pub(super) fn expire(call: &mut Call<'_>) -> Outcome {
    let ms = milliseconds(call.name, &call.args[2], call.unit_ms())?;
    let (store, key) = (call.store(), &call.args[1]);
    let found = match u64::try_from(ms) {
        Ok(ms @ 1..) => {
            let entry = store.find(key);
            entry.map(|mut entry| entry.reschedule(Duration::from_millis(ms))).is_some()
        }
        _ => store.remove(key),
    };
    call.reply.integer(i64::from(found));
    Ok(())
}

pub(super) fn persist(call: &mut Call<'_>) -> Outcome {
    let entry = call.store().find(&call.args[1]).filter(|entry| entry.deadline().is_some());
    let found = entry.map(|mut entry| entry.reschedule(FOREVER)).is_some();
    call.reply.integer(i64::from(found));
    Ok(())
}

/// TTL and PTTL: -1 if the key has no deadline, -2 if it is not there.
pub(super) fn ttl(call: &mut Call<'_>) -> Outcome {
    let store = call.store();
    let left = match store.find(&call.args[1]).map(|entry| entry.deadline()) {
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
    let cursor = std::str::from_utf8(&call.args[1]).ok().and_then(|digits| digits.parse().ok());
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
    let (mut count, mut seen) = (0, 0);
    while let Some(from) = place.filter(|_| seen < wanted && !found.is_overflown) {
        place = call.store().visit_from(from, |key| {
            seen += 1;
            if glob::matches(pattern, key) {
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
        [how] if [&b"ASYNC"[..], b"SYNC"].iter().any(|it| how.eq_ignore_ascii_case(it)) => {}
        _ => return Err(SYNTAX.into()),
    }
    call.store().clear();
    call.reply.ok();
    Ok(())
}
