//! The operations of a store that has all rows to itself, in memory or in a file. An operation
//! loads each row by its name, changes it by the functions of [`states`](crate::store::states), and
//! writes it back.

use crate::entry::{Cancelled, DeadTimer, Error, Listed, Paused, Scheduled, Search, Touched};
use crate::store::states::{Lapsed, Row, State, Timer};
use crate::store::{
    Ack, Bulk, Changed, Claims, Ending, Look, Name, NewTimer, Place, Renewal, Step, Want, earlier,
};
use crate::when::{Moment, StoreTime};
use std::time::Duration;

/// Which rows are visited, and in which order.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scan<'a> {
    /// Rows that can be claimed, now or later, from a place on, in the order of places.
    Free(Place),
    /// Claimed rows, in the order in which their claims run out.
    Claimed,
    /// Dead timers from a place on, in the order of their deaths.
    Dead(Place),
    /// The rows of a change after a name, in the order of names. May have others.
    Of(&'a Bulk, &'a str),
}

/// How many rows a claim reads at most. It reads so many only if pauses hold most of them.
const MET: u32 = 5_000;

impl Want {
    /// Returns whether a claim that has met so many free and held rows is full.
    fn is_full(&self, free: u32, held: u32) -> bool {
        match self.limit {
            // A claim that only puts held rows off.
            0 => held == self.holds,
            limit => free == limit,
        }
    }
}

/// Returns until when a timer is paused.
fn paused_until(pauses: &[Paused], timer: &Timer) -> Option<StoreTime> {
    let own = pauses
        .iter()
        .filter(|pause| pause.tag.is_none() || pause.tag == timer.tag);
    own.map(|pause| pause.until).max()
}

/// A function that is called with each row of a scan, and returns whether to go on.
pub(super) type Visit<'a> = &'a mut dyn FnMut(&Name, &Row) -> Result<bool, Error>;

/// All rows of a store, under a lock or in a transaction. The transaction is rolled back after an
/// error.
pub(super) trait Rows: Sized {
    fn load(&self, name: &Name) -> Result<Option<Row>, Error>;

    /// Returns the greatest token of any claim. The tokens of a new row are greater.
    fn greatest(&self) -> i64;

    /// Writes a row, unless its name has a row: then returns that row.
    fn add(&mut self, name: &Name, row: Row) -> Result<Option<Row>, Error> {
        let former = self.load(name)?;
        if former.is_none() {
            self.put(name, Some(row))?;
        }
        Ok(former)
    }

    /// Writes a row, or deletes it.
    fn put(&mut self, name: &Name, row: Option<Row>) -> Result<(), Error>;

    /// Deletes the row of a claim unless another timer waits there, and returns whether it did. A
    /// shortcut for the most frequent end, which an implementation may leave out.
    fn end(&mut self, _name: &Name, _token: i64) -> Result<bool, Error> {
        Ok(false)
    }

    fn scan(&self, scan: Scan<'_>, visit: Visit<'_>) -> Result<(), Error>;

    /// Sets or ends a pause.
    fn pause(
        &mut self,
        tag: Option<String>,
        until: Option<StoreTime>,
        now: StoreTime,
    ) -> Result<(), Error>;

    /// Lists the present pauses.
    fn pauses(&self, now: StoreTime) -> Result<Vec<Paused>, Error>;

    /// Changes each row of a batch, and collects the answers.
    fn each<R, A>(
        &mut self,
        batch: Vec<R>,
        now: StoreTime,
        change: impl Fn(&mut Self, R) -> Result<(A, Option<Place>), Error>,
    ) -> Result<Changed<A>, Error> {
        let mut first = None;
        let mut answers = Vec::with_capacity(batch.len());
        for one in batch {
            let (answer, place) = change(self, one)?;
            answers.push(Some(answer));
            first = earlier(first, place);
        }
        Ok(Changed {
            now,
            first,
            answers,
        })
    }

    fn schedule(
        &mut self,
        timers: Vec<NewTimer>,
        now: StoreTime,
    ) -> Result<Changed<Scheduled>, Error> {
        self.each(timers, now, |rows, new| {
            // Most names have no row: tried first.
            let row = Row::new(&new, rows.greatest(), now);
            let place = row.place();
            let Some(mut row) = rows.add(&new.name, row)? else {
                return Ok((Scheduled::New, place));
            };
            let answer = row.schedule(&new, now);
            if answer == Scheduled::Kept {
                return Ok((answer, None));
            }
            let place = row.place();
            rows.put(&new.name, Some(row))?;
            Ok((answer, place))
        })
    }

    fn cancel(&mut self, names: Vec<Name>, now: StoreTime) -> Result<Changed<Cancelled>, Error> {
        self.each(names, now, |rows, name| {
            let Some(mut row) = rows.load(&name)? else {
                return Ok((Cancelled::Unknown, None));
            };
            let (answer, ends) = row.cancel();
            rows.put(&name, (!ends).then_some(row))?;
            Ok((answer, None))
        })
    }

    fn touch(
        &mut self,
        moves: Vec<(Name, Moment)>,
        now: StoreTime,
    ) -> Result<Changed<Touched>, Error> {
        self.each(moves, now, |rows, (name, moment)| {
            let Some(mut row) = rows.load(&name)? else {
                return Ok((Touched::Unknown, None));
            };
            let answer = row.touch(&moment, now);
            if answer != Touched::Moved {
                return Ok((answer, None));
            }
            let place = row.place();
            rows.put(&name, Some(row))?;
            Ok((answer, place))
        })
    }

    fn claim(&mut self, want: Want, now: StoreTime) -> Result<Claims, Error> {
        let mut claims = Claims {
            now,
            from: want.from,
            ..Claims::default()
        };
        // The changes are made after the scan, which must not meet them.
        let mut changed: Vec<(Name, Option<Row>)> = Vec::new();
        let mut met = 0;
        let mut free = 0;
        let mut held = 0;
        let mut bytes = 0;
        let pauses = self.pauses(now)?;
        self.scan(Scan::Free(want.from), &mut |name, row| {
            let timer = &row.timer;
            if timer.due > now {
                return Ok(false);
            }
            let paused = paused_until(&pauses, timer);
            let length = timer.payload.len();
            let takes_bytes = paused.is_none() && !timer.has_expired(now);
            let is_long = takes_bytes && bytes + length > want.bytes && !claims.rows.is_empty();
            if want.is_full(free, held) || is_long || met == MET {
                claims.more = true;
                claims.from = timer.place();
                return Ok(false);
            }
            met += 1;
            match paused {
                Some(until) if held < want.holds => {
                    held += 1;
                    let mut row = row.clone();
                    row.hold(until);
                    changed.push((name.clone(), Some(row)));
                }
                None if free < want.limit => {
                    free += 1;
                    bytes += if takes_bytes { length } else { 0 };
                    let row = row.clone().claim(name, want.lease, &mut claims);
                    changed.push((name.clone(), row));
                }
                _ => {} // Passed over.
            }
            Ok(true)
        })?;
        for (name, row) in changed {
            self.put(&name, row)?;
        }
        claims.held = u64::from(held);
        if !claims.more {
            claims.from = want.from.max(Place::before(now));
        }
        let later = now.plus(Duration::from_micros(1));
        self.scan(Scan::Free(Place::before(later)), &mut |_, row| {
            claims.next = row.place();
            Ok(false)
        })?;
        Ok(claims)
    }

    fn take_over(
        &mut self,
        most: u32,
        limit: u32,
        lease: Duration,
        now: StoreTime,
    ) -> Result<Claims, Error> {
        let mut claims = Claims {
            now,
            ..Claims::default()
        };
        let mut lapsed: Vec<Lapsed> = Vec::new();
        self.scan(Scan::Claimed, &mut |name, row| {
            let found = row.lapsed(name, now);
            let has_lapsed = found.is_some();
            lapsed.extend(found.filter(|found| found.crashes <= most));
            Ok(has_lapsed)
        })?;
        lapsed.sort();
        let crashes = lapsed.first().map_or(0, |first| first.crashes);
        lapsed.retain(|other| other.crashes == crashes);
        let limit = match crashes {
            0 => limit,
            1 => limit.div_ceil(10),
            _ => limit.div_ceil(100),
        };
        claims.more = lapsed.len() > limit as usize;
        lapsed.truncate(limit as usize);
        for Lapsed { name, .. } in lapsed {
            let Some(row) = self.load(&name)? else {
                continue;
            };
            let row = row.take_over(&name, lease, &mut claims);
            // A timer that has waited for the end of the run can be claimed.
            let freed = row.as_ref().and_then(Row::place);
            claims.next = earlier(claims.next, freed);
            self.put(&name, row)?;
        }
        Ok(claims)
    }

    fn look(&self, now: StoreTime) -> Result<Look, Error> {
        let mut look = Look {
            now,
            ..Look::default()
        };
        self.scan(Scan::Free(Place::before(StoreTime::MIN)), &mut |_, row| {
            look.first = row.place();
            // An idle node's look reads no pauses.
            if row.timer.due <= now {
                look.held = paused_until(&self.pauses(now)?, &row.timer).is_some();
            }
            Ok(false)
        })?;
        self.scan(Scan::Claimed, &mut |name, row| {
            look.lapsed = row.lapsed(name, now).is_some();
            Ok(false)
        })?;
        Ok(look)
    }

    fn renew(&mut self, renewals: Vec<Renewal>, now: StoreTime) -> Result<Changed<bool>, Error> {
        self.each(renewals, now, |rows, renewal| {
            let Some(mut row) = rows.load(&renewal.name)? else {
                return Ok((false, None));
            };
            let renewed = row.renew(renewal.token, now.plus(renewal.term));
            if renewed {
                rows.put(&renewal.name, Some(row))?;
            }
            Ok((renewed, None))
        })
    }

    fn acknowledge(&mut self, acks: Vec<Ack>, now: StoreTime) -> Result<Changed<bool>, Error> {
        self.each(acks, now, |rows, ack| {
            if ack.ending == Ending::Done && rows.end(&ack.name, ack.token)? {
                return Ok((true, None));
            }
            let row = rows.load(&ack.name)?;
            let Some(row) = row.filter(|row| row.is_claimed_by(ack.token)) else {
                return Ok((false, None));
            };
            let Some((name, row)) = row.end(ack.name.clone(), ack.ending, now) else {
                rows.put(&ack.name, None)?;
                return Ok((true, None));
            };
            if name != ack.name {
                // A dead timer has a name of its own, and its key is free.
                rows.put(&ack.name, None)?;
            }
            let place = row.place();
            rows.put(&name, Some(row))?;
            Ok((true, place))
        })
    }

    fn get(&self, name: &Name) -> Result<Option<Listed>, Error> {
        Ok(self.load(name)?.and_then(|row| row.listed(name)))
    }

    fn list(&self, search: &Search) -> Result<Vec<Listed>, Error> {
        let mut found = Vec::new();
        let fits = |name: &Name, row: &Row| {
            let listed = row.listed(name)?;
            search
                .fits((&listed).into(), &listed.key, &listed.tag)
                .then_some(listed)
        };
        // Timers that handlers have are few, and do not lie in the order of due times.
        self.scan(Scan::Claimed, &mut |name, row| {
            found.extend(fits(name, row));
            Ok(true)
        })?;
        let most = found.len() + search.limit as usize;
        self.scan(Scan::Free(search.after), &mut |name, row| {
            found.extend(fits(name, row));
            Ok(found.len() < most)
        })?;
        found.sort_by_key(|listed| Place::from(listed));
        found.truncate(search.limit as usize);
        Ok(found)
    }

    fn dead(&self, search: &Search) -> Result<Vec<DeadTimer>, Error> {
        let mut found = Vec::new();
        let limit = search.limit as usize;
        let fits = |dead: &DeadTimer| search.fits(dead.into(), &dead.key, &dead.tag);
        self.scan(Scan::Dead(search.after), &mut |_, row| {
            found.extend(row.dead().filter(fits));
            Ok(found.len() < limit)
        })?;
        found.truncate(limit);
        Ok(found)
    }

    /// Makes a dead timer due, unless its key has a timer again.
    fn requeue(&mut self, dead: &Name, now: StoreTime) -> Result<Option<Place>, Error> {
        let Some(mut row) = self.load(dead)? else {
            return Ok(None);
        };
        let State::Dead { former, .. } = row.requeue(now) else {
            return Ok(None);
        };
        // The key may have had another timer meanwhile, with later tokens.
        row.token = row.token.max(self.greatest());
        if self.load(&former)?.is_some() {
            return Ok(None);
        }
        let place = row.place();
        self.put(dead, None)?;
        self.put(&former, Some(row))?;
        Ok(place)
    }

    fn bulk(
        &mut self,
        bulk: &Bulk,
        after: Option<&Name>,
        limit: u32,
        now: StoreTime,
    ) -> Result<Step, Error> {
        let limit = limit as usize;
        let mut names: Vec<Name> = Vec::new();
        // All names are after the empty one.
        let after = after.map_or("", |name| &name.0);
        if let Bulk::RequeueOne(id) = bulk {
            names.push(Name::of_dead(*id));
        } else {
            self.scan(Scan::Of(bulk, after), &mut |name, row| {
                if bulk.is_for(row) {
                    names.push(name.clone());
                }
                Ok(names.len() <= limit)
            })?;
        }
        let is_more = names.len() > limit;
        names.truncate(limit);
        let mut step = Step {
            now,
            more: names.last().filter(|_| is_more).cloned(),
            ..Step::default()
        };
        for name in names {
            if let Some(place) = self.change(bulk, &name, now)? {
                step.count += 1;
                step.first = earlier(step.first, place);
            }
        }
        Ok(step)
    }

    /// Changes one row. `None` if nothing was done; otherwise the row's place, if it can be
    /// claimed.
    fn change(
        &mut self,
        bulk: &Bulk,
        name: &Name,
        now: StoreTime,
    ) -> Result<Option<Option<Place>>, Error> {
        if let Bulk::Requeue(_) | Bulk::RequeueOne(_) = bulk {
            return Ok(self.requeue(name, now)?.map(Some));
        }
        let Some(mut row) = self.load(name)? else {
            return Ok(None);
        };
        let stays = match bulk {
            Bulk::Cancel(_) => !row.cancel().1,
            Bulk::Touch(_, moment) => row.touch(moment, now) == Touched::Moved,
            Bulk::Release(_) => {
                row.release(now);
                true
            }
            Bulk::Requeue(_) | Bulk::RequeueOne(_) | Bulk::Delete(_) => false,
        };
        let place = row.place().filter(|_| stays);
        self.put(name, stays.then_some(row))?;
        Ok(Some(place))
    }
}
