//! EXPIRE, TTL and their like.

use super::Call;
use super::failure::{Failure, Outcome, shown};
use super::options::{EX, EXAT, PX, PXAT, Unit};
use crate::deadline::Deadline;
use crate::request::Args;
use crate::slot::Found;

pub(super) fn expire(call: &mut Call<'_>) -> Outcome {
    set_deadline(call, EX)
}

pub(super) fn pexpire(call: &mut Call<'_>) -> Outcome {
    set_deadline(call, PX)
}

pub(super) fn expireat(call: &mut Call<'_>) -> Outcome {
    set_deadline(call, EXAT)
}

pub(super) fn pexpireat(call: &mut Call<'_>) -> Outcome {
    set_deadline(call, PXAT)
}

fn set_deadline(call: &mut Call<'_>, unit: Unit) -> Outcome {
    let conditions = Conditions::of(call.args)?;
    let deadline = unit.any_deadline(call.word(2), call)?;
    let is_meant = |found: &Found<'_>| conditions.hold(found.value().deadline, deadline);
    let set = call.find().filter(is_meant).map(|mut found| {
        if deadline.wall_ms <= call.now.wall_ms() {
            found.remove(); // At once, and as if by DEL: it does not expire.
        } else {
            found.set_deadline(Some(deadline));
        }
    });
    call.client.reply.integer(set.is_some().into());
    Ok(())
}

/// NX, XX, GT, LT.
#[derive(Default)]
struct Conditions {
    if_none: bool,
    if_some: bool,
    if_later: bool,
    if_earlier: bool,
}

impl Conditions {
    fn of(args: Args<'_>) -> Result<Self, Failure> {
        let mut all = Conditions::default();
        for word in args.from(3) {
            let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
            match () {
                () if is("NX") => all.if_none = true,
                () if is("XX") => all.if_some = true,
                () if is("GT") => all.if_later = true,
                () if is("LT") => all.if_earlier = true,
                () => {
                    let option = shown(word, 128);
                    return Err(Failure::new(format!("ERR Unsupported option {option}")));
                }
            }
        }
        let clash = match () {
            () if all.if_none && (all.if_some || all.if_later || all.if_earlier) => {
                "NX and XX, GT or LT"
            }
            () if all.if_later && all.if_earlier => "GT and LT",
            () => return Ok(all),
        };
        let text = format!("ERR {clash} options at the same time are not compatible");
        Err(Failure::new(text))
    }

    /// Returns whether the condition holds. A key without a deadline lives forever: longer than any
    /// other.
    fn hold(&self, former: Option<Deadline>, new: Deadline) -> bool {
        let wall_ms = former.map(|former| former.wall_ms);
        !(self.if_none && wall_ms.is_some()
            || self.if_some && wall_ms.is_none()
            || self.if_later && wall_ms.is_none_or(|former| new.wall_ms <= former)
            || self.if_earlier && wall_ms.is_some_and(|former| new.wall_ms >= former))
    }
}

pub(super) fn persist(call: &mut Call<'_>) -> Outcome {
    let found = call.find().filter(|found| found.value().deadline.is_some());
    let persisted = found.map(|mut found| found.set_deadline(None));
    call.client.reply.integer(persisted.is_some().into());
    Ok(())
}

pub(super) fn ttl(call: &mut Call<'_>) -> Outcome {
    let now = call.now.instant;
    tell(call, |deadline| seconds(deadline.ttl_ms(now)))
}

pub(super) fn pttl(call: &mut Call<'_>) -> Outcome {
    let now = call.now.instant;
    tell(call, |deadline| deadline.ttl_ms(now))
}

pub(super) fn expiretime(call: &mut Call<'_>) -> Outcome {
    tell(call, |deadline| seconds(deadline.wall_ms))
}

pub(super) fn pexpiretime(call: &mut Call<'_>) -> Outcome {
    tell(call, |deadline| deadline.wall_ms)
}

/// Tells a time: -1 for a key that does not expire, -2 for a key that is absent.
fn tell(call: &mut Call<'_>, told: impl FnOnce(Deadline) -> i64) -> Outcome {
    let deadline = call.find().map(|found| found.value().deadline);
    let number = deadline.map_or(-2, |deadline| deadline.map_or(-1, told));
    call.client.reply.integer(number);
    Ok(())
}

/// Rounds to the nearest second.
fn seconds(ms: i64) -> i64 {
    ms.saturating_add(500) / 1000
}
