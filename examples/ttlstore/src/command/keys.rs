//! What concerns keys, whatever their values.

use super::Call;
use super::failure::{Outcome, no_such_key, syntax_error};
use crate::slot::Found;

/// Deletes one key after the other: not all in one step.
pub(super) fn del(call: &mut Call<'_>) -> Outcome {
    let (store, now) = (&call.shared.store, call.now.instant);
    let found = call.args.from(1).filter_map(|key| store.find(key, now));
    let removed = found.map(Found::remove).count();
    call.client.reply.count(removed);
    Ok(())
}

pub(super) fn exists(call: &mut Call<'_>) -> Outcome {
    let (store, now) = (&call.shared.store, call.now.instant);
    let found = call.args.from(1).filter_map(|key| store.find(key, now)).count();
    call.client.reply.count(found);
    Ok(())
}

pub(super) fn type_of(call: &mut Call<'_>) -> Outcome {
    let name = if call.find().is_some() { "string" } else { "none" };
    call.client.reply.simple(name);
    Ok(())
}

pub(super) fn rename(call: &mut Call<'_>) -> Outcome {
    move_to(call, false)?;
    call.client.reply.ok();
    Ok(())
}

pub(super) fn renamenx(call: &mut Call<'_>) -> Outcome {
    let moved = move_to(call, true)?;
    call.client.reply.integer(moved.into());
    Ok(())
}

/// Moves a value to another key, in one step, because the command runs alone. Returns whether the
/// key has moved.
fn move_to(call: &mut Call<'_>, if_absent: bool) -> Result<bool, super::failure::Failure> {
    let (store, now) = (&call.shared.store, call.now.instant);
    let found = call.find().ok_or_else(no_such_key)?;
    if call.word(1) == call.word(2) {
        return Ok(!if_absent);
    }
    // Never two keys at a time: they may lie in the same shard.
    drop(found);
    if if_absent && store.find(call.word(2), now).is_some() {
        return Ok(false);
    }
    let value = call.find().ok_or_else(no_such_key)?.remove();
    store.slot(call.word(2), now).set(&value.bytes, value.deadline)?;
    Ok(true)
}

pub(super) fn dbsize(call: &mut Call<'_>) -> Outcome {
    call.client.reply.count(call.shared.store.len());
    Ok(())
}

/// Flushes all keys. ASYNC and SYNC are the same here: no shard is locked for long.
pub(super) fn flush(call: &mut Call<'_>) -> Outcome {
    let how = call.word(1);
    let known = [&b"ASYNC"[..], b"SYNC"].iter().any(|known| how.eq_ignore_ascii_case(known));
    if call.args.len() > 2 || call.args.len() == 2 && !known {
        return Err(syntax_error());
    }
    call.shared.store.flush();
    call.client.reply.ok();
    Ok(())
}
