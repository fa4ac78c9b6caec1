//! The options of SET and GETEX, and how times are given.

use super::Call;
use super::failure::{Failure, not_an_integer, syntax_error};
use crate::deadline::{Deadline, Now};
use crate::request::{Args, number};

/// How a time is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) ms: i64,
    /// A date, not a time from now.
    pub(super) is_date: bool,
}

pub(super) const EX: Unit = Unit { ms: 1000, is_date: false };
pub(super) const PX: Unit = Unit { ms: 1, is_date: false };
pub(super) const EXAT: Unit = Unit { ms: 1000, is_date: true };
pub(super) const PXAT: Unit = Unit { ms: 1, is_date: true };

/// What becomes of the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ttl<'a> {
    /// Nothing was said.
    Unsaid,
    /// KEEPTTL
    Keep,
    /// PERSIST
    Persist,
    /// EX, PX, EXAT or PXAT
    Until(Unit, &'a [u8]),
}

/// When SET sets the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Always,
    IfAbsent,
    IfPresent,
}

#[derive(Debug)]
pub(super) struct SetOptions<'a> {
    pub(super) condition: Condition,
    /// The reply is the former value.
    pub(super) get: bool,
    pub(super) ttl: Ttl<'a>,
}

impl<'a> SetOptions<'a> {
    pub(super) fn of(args: Args<'a>) -> Result<Self, Failure> {
        use Condition::{Always, IfAbsent, IfPresent};
        let mut options = SetOptions { condition: Always, get: false, ttl: Ttl::Unsaid };
        let mut words = args.from(3);
        while let Some(word) = words.next() {
            let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
            match options.condition {
                Always | IfAbsent if is("NX") => options.condition = IfAbsent,
                Always | IfPresent if is("XX") => options.condition = IfPresent,
                _ if is("GET") => options.get = true,
                _ if is("KEEPTTL") && matches!(options.ttl, Ttl::Unsaid | Ttl::Keep) => {
                    options.ttl = Ttl::Keep;
                }
                _ => options.ttl = time(options.ttl, word, words.next())?,
            }
        }
        Ok(options)
    }
}

/// Parses the options that only GETEX has.
pub(super) fn getex_ttl(args: Args<'_>) -> Result<Ttl<'_>, Failure> {
    let mut ttl = Ttl::Unsaid;
    let mut words = args.from(2);
    while let Some(word) = words.next() {
        let may_persist = matches!(ttl, Ttl::Unsaid | Ttl::Persist);
        if word.eq_ignore_ascii_case(b"PERSIST") && may_persist {
            ttl = Ttl::Persist;
        } else {
            ttl = time(ttl, word, words.next())?;
        }
    }
    Ok(ttl)
}

/// Parses a time, once more in the same unit or for the first time.
fn time<'a>(former: Ttl<'_>, word: &[u8], time: Option<&'a [u8]>) -> Result<Ttl<'a>, Failure> {
    let units = [("EX", EX), ("PX", PX), ("EXAT", EXAT), ("PXAT", PXAT)];
    let unit = units.iter().find(|unit| word.eq_ignore_ascii_case(unit.0.as_bytes()));
    match (former, unit, time) {
        (Ttl::Unsaid, Some((_, unit)), Some(time)) => Ok(Ttl::Until(*unit, time)),
        (Ttl::Until(former, _), Some((_, unit)), Some(time)) if former == *unit => {
            Ok(Ttl::Until(*unit, time))
        }
        _ => Err(syntax_error()),
    }
}

impl Unit {
    /// Returns the deadline that these digits mean, for EXPIRE and its like: the past is allowed.
    pub(super) fn any_deadline(self, digits: &[u8], call: &Call<'_>) -> Result<Deadline, Failure> {
        let time = number(digits).ok_or_else(not_an_integer)?;
        let deadline = self.deadline(time, call.now);
        deadline.ok_or_else(|| invalid_expire_time(call.name))
    }

    /// Returns the same for SET and its like: the time must be positive.
    pub(super) fn positive(self, digits: &[u8], call: &Call<'_>) -> Result<Deadline, Failure> {
        let time = number(digits).ok_or_else(not_an_integer)?;
        let deadline = self.deadline(time, call.now).filter(|_| time > 0);
        deadline.ok_or_else(|| invalid_expire_time(call.name))
    }

    fn deadline(self, time: i64, now: Now) -> Option<Deadline> {
        let ms = time.checked_mul(self.ms)?;
        if self.is_date {
            return Some(now.until_ms(ms));
        }
        let wall_ms = now.wall_ms().checked_add(ms)?;
        Some(if ms > 0 { now.after_ms(ms) } else { now.until_ms(wall_ms) })
    }
}

fn invalid_expire_time(name: &str) -> Failure {
    Failure::new(format!("ERR invalid expire time in '{name}' command"))
}
