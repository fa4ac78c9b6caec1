//! OBJECT: what a value looks like inside, as far as there is anything to tell.

use super::Call;
use super::failure::{Failure, Outcome};
use crate::request::number;

/// Tells what Redis would call the encoding: all values are stored in the same way here.
pub(super) fn encoding(call: &mut Call<'_>) -> Outcome {
    let found = call.shared.store.find(call.word(2), call.now.instant);
    match found.map(|found| name(&found.value().bytes)) {
        Some(name) => call.client.reply.bulk(name.as_bytes()),
        None => call.client.reply.null(),
    }
    Ok(())
}

fn name(bytes: &[u8]) -> &'static str {
    match bytes.len() {
        _ if number(bytes).is_some() => "int",
        0..=44 => "embstr",
        _ => "raw",
    }
}

pub(super) fn refcount(call: &mut Call<'_>) -> Outcome {
    match call.shared.store.find(call.word(2), call.now.instant) {
        Some(_) => call.client.reply.integer(1),
        None => call.client.reply.null(),
    }
    Ok(())
}

pub(super) fn idletime(call: &mut Call<'_>) -> Outcome {
    match call.shared.store.find(call.word(2), call.now.instant) {
        Some(_) => Err(Failure::new("ERR idle time is not tracked")),
        None => {
            call.client.reply.null();
            Ok(())
        }
    }
}

pub(super) fn freq(call: &mut Call<'_>) -> Outcome {
    match call.shared.store.find(call.word(2), call.now.instant) {
        Some(_) => Err(Failure::new(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please \
             note that when switching between policies at runtime LRU and LFU data will take some \
             time to adjust.",
        )),
        None => {
            call.client.reply.null();
            Ok(())
        }
    }
}

pub(super) fn help(call: &mut Call<'_>) -> Outcome {
    super::list::tell_help(
        call,
        &[
            "OBJECT ENCODING <key>",
            "OBJECT FREQ <key>",
            "OBJECT IDLETIME <key>",
            "OBJECT REFCOUNT <key>",
        ],
    )
}
