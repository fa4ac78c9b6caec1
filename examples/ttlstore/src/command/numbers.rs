//! INCR, DECR and their like: strings that are numbers.

use super::Call;
use super::failure::{Failure, Outcome, not_an_integer};
use crate::request::number;

pub(super) fn incr(call: &mut Call<'_>) -> Outcome {
    add(call, 1)
}

pub(super) fn decr(call: &mut Call<'_>) -> Outcome {
    add(call, -1)
}

pub(super) fn incrby(call: &mut Call<'_>) -> Outcome {
    let step = number(call.word(2)).ok_or_else(not_an_integer)?;
    add(call, step)
}

pub(super) fn decrby(call: &mut Call<'_>) -> Outcome {
    let step = number(call.word(2)).ok_or_else(not_an_integer)?;
    let step = step.checked_neg();
    add(call, step.ok_or_else(|| Failure::new("ERR decrement would overflow"))?)
}

fn add(call: &mut Call<'_>, step: i64) -> Outcome {
    let slot = call.slot();
    let (former, deadline) = match slot.value() {
        Some(value) => (number(&value.bytes).ok_or_else(not_an_integer)?, value.deadline),
        None => (0, None),
    };
    let sum = former.checked_add(step);
    let overflow = || Failure::new("ERR increment or decrement would overflow");
    let sum = sum.ok_or_else(overflow)?;
    slot.set(sum.to_string().as_bytes(), deadline)?;
    call.client.reply.integer(sum);
    Ok(())
}

/// Adds in 64 bits, where Redis has 80: the last of its 17 digits may differ.
pub(super) fn incrbyfloat(call: &mut Call<'_>) -> Outcome {
    let slot = call.slot();
    let (former, deadline) = match slot.value() {
        Some(value) => (float(&value.bytes)?, value.deadline),
        None => (0.0, None),
    };
    let sum = former + float(call.word(2))?;
    if !sum.is_finite() {
        return Err(Failure::new("ERR increment would produce NaN or Infinity"));
    }
    let text = (sum + 0.0).to_string(); // There is no negative zero.
    slot.set(text.as_bytes(), deadline)?;
    call.client.reply.bulk(text.as_bytes());
    Ok(())
}

fn float(digits: &[u8]) -> Result<f64, Failure> {
    let text = std::str::from_utf8(digits).ok();
    let number = text.and_then(|text| text.parse::<f64>().ok()).filter(|number| !number.is_nan());
    number.ok_or_else(|| Failure::new("ERR value is not a valid float"))
}
