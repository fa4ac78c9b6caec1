//! GET, SET and their like.

use super::options::{Condition, SetOptions, Ttl, getex_ttl};
use super::{Call, Outcome};
use crate::slot::Found;

pub(super) fn get(call: &mut Call<'_>) -> Outcome {
    match call.find() {
        Some(found) => call.client.reply.bulk(&found.value().bytes),
        None => call.client.reply.null(),
    }
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

/// Deletes one key after the other, not all in one step.
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
