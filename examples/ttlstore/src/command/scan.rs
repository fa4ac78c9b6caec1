//! KEYS, SCAN and RANDOMKEY: what walks through the keys.

use super::Call;
use super::failure::{Failure, Outcome, not_an_integer, syntax_error};
use crate::glob;
use crate::request::number;

pub(super) fn keys(call: &mut Call<'_>) -> Outcome {
    let pattern = call.word(1);
    let (mut found, mut count) = (call.client.reply.like(), 0);
    call.shared.store.for_each(call.now.instant, |key, _| {
        if glob::matches(pattern, key) {
            found.bulk(key);
            count += 1;
        }
    });
    call.client.reply.array(count);
    call.client.reply.append(&found);
    Ok(())
}

/// Scans at least COUNT keys, and at most 1023 more.
pub(super) fn scan(call: &mut Call<'_>) -> Outcome {
    let mut place = Some(cursor(call.word(1))?);
    let (mut pattern, mut wanted, mut of_type): (&[u8], i64, bool) = (b"*", 10, true);
    let mut words = call.args.from(2);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(syntax_error)?;
        if word.eq_ignore_ascii_case(b"COUNT") {
            wanted = number(value).ok_or_else(not_an_integer)?;
            if wanted < 1 {
                return Err(syntax_error());
            }
        } else if word.eq_ignore_ascii_case(b"MATCH") {
            pattern = value;
        } else if word.eq_ignore_ascii_case(b"TYPE") {
            of_type = value.eq_ignore_ascii_case(b"string");
        } else {
            return Err(syntax_error());
        }
    }
    let (mut found, mut count, mut seen) = (call.client.reply.like(), 0, 0);
    while let Some(from) = place.filter(|_| seen < wanted) {
        place = call.shared.store.visit_from(from, call.now.instant, |key, _| {
            seen += 1;
            if of_type && glob::matches(pattern, key) {
                found.bulk(key);
                count += 1;
            }
        });
    }
    let reply = &mut call.client.reply;
    reply.array(2);
    reply.bulk(place.unwrap_or(0).to_string().as_bytes());
    reply.array(count);
    reply.append(&found);
    Ok(())
}

/// Reads a cursor: any number; a negative one is a large one.
fn cursor(digits: &[u8]) -> Result<u64, Failure> {
    let digits = std::str::from_utf8(digits).unwrap_or_default();
    let signed = || digits.parse::<i64>().ok().map(|number| number as u64);
    digits.parse().ok().or_else(signed).ok_or_else(|| Failure::new("ERR invalid cursor"))
}

/// Returns one of the next thousand keys, each as likely as the others; the next call looks further
/// on.
pub(super) fn randomkey(call: &mut Call<'_>) -> Outcome {
    let (store, now) = (&call.shared.store, call.now.instant);
    let (mut chosen, mut seen) = (None, 0);
    // The hand may be where nothing is any more: then it has gone round after the first look.
    for _ in 0..2 {
        store.visit_some(now, |key, _| {
            seen += 1;
            if fastrand::u64(..seen) == 0 {
                chosen = Some(key.to_vec());
            }
        });
        if chosen.is_some() {
            break;
        }
    }
    match chosen {
        Some(key) => call.client.reply.bulk(&key),
        None => call.client.reply.null(),
    }
    Ok(())
}
