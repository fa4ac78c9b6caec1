//! GET, SET and their like.

use super::Call;
use super::failure::{Outcome, too_long, wrong_arity};
use super::options::{Condition, EX, PX, SetOptions, Ttl, Unit, getex_ttl};
use crate::slot::Found;

pub(super) fn get(call: &mut Call<'_>) -> Outcome {
    let found = call.find();
    tell(call, found)
}

fn tell(call: &mut Call<'_>, found: Option<Found<'_>>) -> Outcome {
    match found {
        Some(found) => call.client.reply.bulk(&found.value().bytes),
        None => call.client.reply.null(),
    }
    Ok(())
}

pub(super) fn mget(call: &mut Call<'_>) -> Outcome {
    call.client.reply.array(call.args.len() - 1);
    for key in call.args.from(1) {
        if call.client.reply.is_overflown() {
            break; // Nobody will read the rest.
        }
        let found = call.shared.store.find(key, call.now.instant);
        tell(call, found)?;
    }
    Ok(())
}

pub(super) fn strlen(call: &mut Call<'_>) -> Outcome {
    let length = call.find().map_or(0, |found| found.value().bytes.len());
    call.client.reply.count(length);
    Ok(())
}

pub(super) fn set(call: &mut Call<'_>) -> Outcome {
    let options = SetOptions::of(call.args)?;
    let deadline = match options.ttl {
        Ttl::Until(unit, digits) => Some(unit.positive(digits, call)?),
        Ttl::Unsaid | Ttl::Keep | Ttl::Persist => None,
    };
    let slot = call.slot();
    let former = slot.value();
    let sets = match options.condition {
        Condition::Always => true,
        Condition::IfAbsent => former.is_none(),
        Condition::IfPresent => former.is_some(),
    };
    let kept = former.and_then(|value| value.deadline).filter(|_| options.ttl == Ttl::Keep);
    let got = former.filter(|_| options.get).map(|value| value.bytes.clone());
    if sets {
        slot.set(call.word(2), deadline.or(kept))?;
    } else {
        drop(slot);
    }
    let reply = &mut call.client.reply;
    match got {
        Some(bytes) => reply.bulk(&bytes),
        None if options.get || !sets => reply.null(),
        None => reply.ok(),
    }
    Ok(())
}

pub(super) fn setex(call: &mut Call<'_>) -> Outcome {
    set_until(call, EX)
}

pub(super) fn psetex(call: &mut Call<'_>) -> Outcome {
    set_until(call, PX)
}

fn set_until(call: &mut Call<'_>, unit: Unit) -> Outcome {
    let deadline = unit.positive(call.word(2), call)?;
    call.slot().set(call.word(3), Some(deadline))?;
    call.client.reply.ok();
    Ok(())
}

pub(super) fn setnx(call: &mut Call<'_>) -> Outcome {
    let slot = call.slot();
    let is_new = slot.value().is_none();
    if is_new {
        slot.set(call.word(2), None)?;
    } else {
        drop(slot);
    }
    call.client.reply.integer(is_new.into());
    Ok(())
}

pub(super) fn getset(call: &mut Call<'_>) -> Outcome {
    let slot = call.slot();
    let former = slot.value().map(|value| value.bytes.clone());
    slot.set(call.word(2), None)?;
    match former {
        Some(bytes) => call.client.reply.bulk(&bytes),
        None => call.client.reply.null(),
    }
    Ok(())
}

/// Sets all or none, except those for which there is no room.
pub(super) fn mset(call: &mut Call<'_>) -> Outcome {
    if call.args.len() % 2 == 0 {
        return Err(wrong_arity(call.name));
    }
    let mut words = call.args.from(1);
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        call.shared.store.slot(key, call.now.instant).set(value, None)?;
    }
    call.client.reply.ok();
    Ok(())
}

pub(super) fn msetnx(call: &mut Call<'_>) -> Outcome {
    if call.args.len() % 2 == 0 {
        return Err(wrong_arity(call.name));
    }
    let (store, now) = (&call.shared.store, call.now.instant);
    let is_there = call.args.from(1).step_by(2).any(|key| store.find(key, now).is_some());
    if is_there {
        call.client.reply.integer(0);
        return Ok(());
    }
    let mut words = call.args.from(1);
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        store.slot(key, now).set(value, None)?;
    }
    call.client.reply.integer(1);
    Ok(())
}

pub(super) fn append(call: &mut Call<'_>) -> Outcome {
    let slot = call.slot();
    let former = slot.value();
    let deadline = former.and_then(|value| value.deadline);
    let bytes = [former.map_or(&[][..], |value| &value.bytes), call.word(2)].concat();
    if bytes.len() > call.shared.bounds.request.max_frame {
        return Err(too_long());
    }
    slot.set(&bytes, deadline)?;
    call.client.reply.count(bytes.len());
    Ok(())
}

pub(super) fn getex(call: &mut Call<'_>) -> Outcome {
    let ttl = getex_ttl(call.args)?;
    let Some(mut found) = call.find() else {
        call.client.reply.null();
        return Ok(());
    };
    let bytes = found.value().bytes.clone();
    match ttl {
        Ttl::Unsaid | Ttl::Keep => drop(found),
        Ttl::Persist => found.set_deadline(None),
        Ttl::Until(unit, digits) => {
            let deadline = unit.positive(digits, call)?;
            if deadline.wall_ms <= call.now.wall_ms() {
                found.remove();
            } else {
                found.set_deadline(Some(deadline));
            }
        }
    }
    call.client.reply.bulk(&bytes);
    Ok(())
}

pub(super) fn getdel(call: &mut Call<'_>) -> Outcome {
    match call.find().map(Found::remove) {
        Some(value) => call.client.reply.bulk(&value.bytes),
        None => call.client.reply.null(),
    }
    Ok(())
}
