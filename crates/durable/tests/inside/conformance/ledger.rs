//! A ledger of each timer's life, kept by what the store was asked and has answered. It knows of no
//! rows: it says what callers and handlers may rely on.

use crate::entry::{Cancelled, DeadTimer, Listed, Scheduled, Touched};
use crate::store::{
    ALONE, Ack, Bulk, Claimed, Claims, Ending, Name, NewTimer, Place, Renewal, Want,
};
use crate::when::{Moment, StoreTime};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Waits for its time, for a claim, or for the end of the key's run.
    Waits,
    Runs,
    Dead,
}

/// A timer that has not ended.
#[derive(Clone, Debug)]
struct Life {
    /// What was scheduled, with the last payload.
    timer: NewTimer,
    stage: Stage,
    /// When a handler may have it, unless a pause puts it off.
    due: StoreTime,
    /// When it may be due instead: at the end of a pause that a claim has met, or at its release.
    put_off: Vec<StoreTime>,
    planned: StoreTime,
    debounced_until: Option<StoreTime>,
    attempts: u32,
    crashes: u32,
    /// Of the last claim.
    token: i64,
    until: StoreTime,
    /// Whether a cancel has promised one run, and that it is the last.
    last_run: bool,
    /// Whether the key was scheduled again while a handler had it.
    replaced: bool,
    died: StoreTime,
}

impl Life {
    fn has_expired(&self, now: StoreTime) -> bool {
        let after = self.timer.expires_after;
        after.is_some_and(|after| now > self.planned.plus(after))
    }

    fn has_run_out(&self, now: StoreTime) -> bool {
        self.stage == Stage::Runs && self.until <= now
    }

    fn move_to(&mut self, moment: &Moment, now: StoreTime) {
        self.due = now.plus(moment.after).max(moment.at);
        self.planned = moment.planned.unwrap_or(self.due);
    }

    /// Follows a run that has ended: it is due now at the earliest.
    fn follow(&mut self, now: StoreTime) {
        self.due = self.due.max(now);
    }

    fn begin(&mut self, claimed: &Claimed, now: StoreTime, lease: Duration) {
        assert_eq!(self.timer.name, claimed.name);
        assert_eq!(self.timer.payload, claimed.payload);
        assert_eq!(self.timer.tag, claimed.tag);
        assert_eq!(self.attempts, claimed.attempts);
        assert_eq!(self.crashes, claimed.crashes);
        assert!(self.due <= claimed.due && claimed.due <= now, "early");
        assert_eq!(self.planned, claimed.planned);
        assert!(!self.has_expired(now), "expired");
        self.stage = Stage::Runs;
        self.due = claimed.due;
        self.token = claimed.token;
        self.until = now.plus(lease);
        self.debounced_until = None;
    }
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// By the timers' numbers.
    lives: BTreeMap<i64, Life>,
    /// The greatest token of each name, also of those that have no timer any more.
    tokens: BTreeMap<Name, i64>,
    pauses: BTreeMap<Option<String>, StoreTime>,
    /// How many timers have expired since [`settle`](Self::settle).
    expired: u64,
}

impl Ledger {
    fn of(&self, name: &Name, stage: Stage) -> Option<&Life> {
        let mut lives = self.lives.values();
        lives.find(|life| life.timer.name == *name && life.stage == stage)
    }

    fn has(&self, name: &Name) -> bool {
        self.of(name, Stage::Waits).is_some() || self.of(name, Stage::Runs).is_some()
    }

    /// Returns the timer of the key that is in no handler's hands and was not cancelled.
    fn waiting(&mut self, name: &Name) -> Option<&mut Life> {
        let mut lives = self.lives.values_mut();
        lives.find(|life| life.timer.name == *name && life.stage == Stage::Waits && !life.last_run)
    }

    /// Has the key's next timer follow its run.
    fn end_run(&mut self, name: &Name, now: StoreTime) {
        if let Some(next) = self.waiting(name) {
            next.follow(now);
        }
    }

    /// Returns where the first of these lies that can be claimed.
    pub(super) fn first(&self, names: &[Name]) -> Option<Place> {
        let names = names.iter();
        let claimable = names.filter(|name| self.of(name, Stage::Runs).is_none());
        let lives = claimable.filter_map(|name| self.of(name, Stage::Waits));
        let places = lives.map(|life| Place {
            due: life.due,
            id: life.timer.id,
        });
        places.min()
    }

    pub(super) fn schedule(&mut self, new: NewTimer, answer: Scheduled, now: StoreTime) {
        let name = &new.name;
        let running = self.of(name, Stage::Runs);
        let stays = match (self.of(name, Stage::Waits), running) {
            (Some(waiting), _) => !waiting.last_run && !waiting.has_expired(now),
            (None, Some(running)) => !running.last_run && !running.replaced,
            (None, None) => false,
        };
        let wanted = match (self.has(name), stays && new.keep) {
            (false, _) => Scheduled::New,
            (true, true) => Scheduled::Kept,
            (true, false) => Scheduled::Replaced,
        };
        assert_eq!(answer, wanted, "{new:?}");
        if wanted == Scheduled::Kept {
            return;
        }
        let mut due = now.plus(new.when.after).max(new.when.at);
        let mut planned = new.when.planned.unwrap_or(due);
        let mut debounced_until = None;
        if let Some(most) = new.max_wait {
            let former = self.of(name, Stage::Waits);
            let earlier = former.and_then(|former| former.debounced_until);
            let end = earlier.map_or(now.plus(most), |earlier| earlier.min(now.plus(most)));
            due = due.min(end.max(now));
            planned = due;
            debounced_until = Some(end);
        }
        self.lives
            .retain(|_, life| life.timer.name != *name || life.stage != Stage::Waits);
        for life in self.lives.values_mut() {
            life.replaced |= life.timer.name == *name && life.stage == Stage::Runs;
        }
        let life = Life {
            stage: Stage::Waits,
            due,
            put_off: Vec::new(),
            planned,
            debounced_until,
            attempts: 0,
            crashes: 0,
            token: 0,
            until: StoreTime::MIN,
            last_run: false,
            replaced: false,
            died: StoreTime::MIN,
            timer: new,
        };
        self.lives.insert(life.timer.id, life);
    }

    pub(super) fn cancel(&mut self, name: &Name, answer: &Cancelled) {
        if let Some(waiting) = self.waiting(name) {
            let id = waiting.timer.id;
            let payload = waiting.timer.payload.clone();
            assert_eq!(*answer, Cancelled::Cancelled(payload));
            self.lives.remove(&id);
            return;
        }
        let wanted = match self.has(name) {
            true => Cancelled::Running,
            false => Cancelled::Unknown,
        };
        assert_eq!(*answer, wanted, "{name:?}");
        for life in self.lives.values_mut() {
            let is_running = life.stage == Stage::Runs && !life.replaced;
            life.last_run |= life.timer.name == *name && is_running;
        }
    }

    pub(super) fn touch(&mut self, name: &Name, moment: &Moment, answer: Touched, now: StoreTime) {
        if let Some(waiting) = self.waiting(name) {
            waiting.move_to(moment, now);
            assert_eq!(answer, Touched::Moved);
            return;
        }
        let wanted = match self.has(name) {
            true => Touched::Running,
            false => Touched::Unknown,
        };
        assert_eq!(answer, wanted, "{name:?}");
    }

    pub(super) fn pause(&mut self, tag: Option<String>, until: Option<StoreTime>) {
        match until {
            Some(until) => self.pauses.insert(tag, until),
            None => self.pauses.remove(&tag),
        };
    }

    fn paused_until(&self, tag: &Option<String>, now: StoreTime) -> Option<StoreTime> {
        let ends = [self.pauses.get(&None), self.pauses.get(tag)];
        let ends = ends.into_iter().flatten().copied();
        ends.filter(|end| *end > now).max()
    }

    /// Notes which timers a claim may have put off.
    fn hold(&mut self, now: StoreTime) {
        let held = self.lives.iter().filter_map(|(id, life)| {
            let until = self.paused_until(&life.timer.tag, now)?;
            Some((*id, until))
        });
        let held: Vec<(i64, StoreTime)> = held.collect();
        for (id, until) in held {
            self.lives
                .entry(id)
                .and_modify(|life| life.put_off.push(until));
        }
    }

    /// Notes a claim, or a takeover.
    pub(super) fn begin(&mut self, claims: &Claims, is_takeover: bool, lease: Duration) {
        let now = claims.now;
        for claimed in &claims.rows {
            let last = self.tokens.entry(claimed.name.clone()).or_default();
            assert!(claimed.token > *last, "a token does not rise: {claimed:?}");
            *last = claimed.token;
            let is_paused = self.paused_until(&claimed.tag, now).is_some();
            let runs = self.of(&claimed.name, Stage::Runs).is_some();
            let Some(life) = self.lives.get_mut(&claimed.id) else {
                panic!("a timer that has ended runs: {claimed:?}");
            };
            if is_takeover {
                assert!(life.has_run_out(now) && !life.replaced, "{claimed:?}");
                life.attempts += u32::from(life.crashes >= ALONE);
                life.crashes += 1;
            } else {
                assert!(life.stage == Stage::Waits && !runs, "{claimed:?}");
                assert!(!is_paused, "{claimed:?}");
                life.attempts += 1;
            }
            life.begin(claimed, now, lease);
        }
        if !is_takeover {
            self.hold(now);
        }
        self.expired += claims.expired;
    }

    /// Compares what a claim has told with what it was asked, and with all timers after it.
    pub(super) fn compare_claim(&self, want: &Want, claims: &Claims, listed: &[Listed]) {
        let rows = &claims.rows;
        assert!(rows.len() as u64 + claims.expired <= u64::from(want.limit));
        let bytes: usize = rows.iter().map(|row| row.payload.len()).sum();
        assert!(bytes <= want.bytes || rows.len() == 1, "{bytes} bytes");
        assert!(rows.is_sorted_by_key(|row| (row.due, row.id)));
        let free = listed.iter().filter(|listed| !listed.running);
        let (due, later): (Vec<&Listed>, Vec<&Listed>) =
            free.partition(|listed| listed.at <= claims.now);
        assert_eq!(claims.next, later.into_iter().map(Place::from).min());
        // The next claim begins before all that this one has left, but for what others put off.
        let is_for = |listed: &&Listed| {
            let is_held = self.paused_until(&listed.tag, claims.now).is_some();
            is_held == (want.limit == 0)
        };
        let left = due.into_iter().filter(is_for).map(Place::from);
        let left = left.filter(|place| *place >= want.from).min();
        assert!(left.is_none_or(|left| claims.more && left >= claims.from));
        assert!(claims.from >= want.from);
    }

    /// Returns the moments at which something changes by itself.
    pub(super) fn edges(&self) -> Vec<StoreTime> {
        let edges = self.lives.values().flat_map(|life| {
            let end = life.timer.expires_after.map(|it| life.planned.plus(it));
            [life.due, life.until].into_iter().chain(end)
        });
        edges.chain(self.pauses.values().copied()).collect()
    }

    /// Returns whether claims have run out.
    pub(super) fn has_lapsed(&self, now: StoreTime) -> bool {
        self.lives.values().any(|life| life.has_run_out(now))
    }

    /// Returns the timer whose claim has this token.
    fn claimed(&mut self, name: &Name, token: i64) -> Option<&mut Life> {
        let mut lives = self.lives.values_mut();
        lives.find(|life| {
            life.timer.name == *name && life.stage == Stage::Runs && life.token == token
        })
    }

    pub(super) fn renew(&mut self, renewal: &Renewal, answer: bool, now: StoreTime) {
        let life = self.claimed(&renewal.name, renewal.token);
        assert_eq!(life.is_some(), answer, "{renewal:?}");
        if let Some(life) = life {
            life.until = now.plus(renewal.term);
        }
    }

    pub(super) fn end(&mut self, ack: &Ack, answer: bool, now: StoreTime) {
        let life = self.claimed(&ack.name, ack.token);
        assert_eq!(life.is_some(), answer, "{ack:?}");
        let Some(life) = life else {
            return;
        };
        let is_back = matches!(ack.ending, Ending::GiveBack | Ending::PutBack(_));
        let is_last = life.replaced || (life.last_run && !is_back) || ack.ending == Ending::Done;
        if is_last {
            let id = life.timer.id;
            self.lives.remove(&id);
            self.end_run(&ack.name, now);
            return;
        }
        life.stage = Stage::Waits;
        match &ack.ending {
            Ending::Done => {}
            Ending::Retry(moment) => {
                life.due = now.plus(moment.after).max(moment.at);
                life.crashes = 0;
            }
            Ending::Again(moment, payload) => {
                life.move_to(moment, now);
                life.timer.payload.clone_from(payload);
                life.attempts = 0;
                life.crashes = 0;
            }
            Ending::Dead(_) => {
                life.stage = Stage::Dead;
                life.died = now;
            }
            Ending::GiveBack => {
                life.follow(now);
                life.attempts -= 1;
            }
            Ending::PutBack(delay) => {
                life.due = now.plus(*delay);
                life.crashes = 0;
            }
        }
    }

    /// Makes a dead timer due; returns whether there is one whose key is free.
    fn rise(&mut self, id: i64, now: StoreTime) -> bool {
        let life = self.lives.get(&id);
        let dead = life.filter(|life| life.stage == Stage::Dead);
        if dead.is_none_or(|dead| self.has(&dead.timer.name)) {
            return false;
        }
        if let Some(life) = self.lives.get_mut(&id) {
            life.stage = Stage::Waits;
            life.due = now;
            life.planned = now;
            life.attempts = 0;
            life.crashes = 0;
        }
        true
    }

    pub(super) fn requeue(&mut self, id: i64, answer: Option<Place>, now: StoreTime) {
        let wanted = self.rise(id, now).then_some(Place { due: now, id });
        assert_eq!(answer, wanted, "{id}");
    }

    /// Notes a change to many that has gone through all its steps.
    pub(super) fn bulk(&mut self, bulk: &Bulk, count: u64, now: StoreTime) {
        let is_dead = |life: &Life, tag: &Option<String>| {
            let is_tagged = tag.is_none() || life.timer.tag == *tag;
            is_tagged && life.stage == Stage::Dead
        };
        let is_for = |life: &&Life| match bulk {
            Bulk::Cancel(tag) | Bulk::Touch(tag, _) => {
                let waits = life.stage == Stage::Waits && !life.last_run;
                waits && life.timer.tag.as_ref() == Some(tag)
            }
            Bulk::Requeue(tag) | Bulk::Delete(tag) => is_dead(life, tag),
            // Which of them a claim has met, the ledger does not know.
            Bulk::Release(_) | Bulk::RequeueOne(_) => false,
        };
        let ids = self.lives.values().filter(is_for).map(|life| life.timer.id);
        let ids: Vec<i64> = ids.collect();
        let mut wanted = 0;
        for id in ids {
            wanted += match bulk {
                Bulk::Requeue(_) => u64::from(self.rise(id, now)),
                _ => 1,
            };
            match (bulk, self.lives.get_mut(&id)) {
                (Bulk::Touch(_, moment), Some(life)) => life.move_to(moment, now),
                (Bulk::Cancel(_) | Bulk::Delete(_), _) => drop(self.lives.remove(&id)),
                _ => {}
            }
        }
        match bulk {
            Bulk::Release(tag) => self.release(tag, now),
            _ => assert_eq!(count, wanted, "{bulk:?}"),
        }
    }

    fn release(&mut self, tag: &Option<String>, now: StoreTime) {
        for life in self.lives.values_mut() {
            if tag.is_none() || life.timer.tag == *tag {
                // It may have been released before, and is put off no more.
                life.put_off.retain(|at| *at <= now);
                life.put_off.push(life.due.max(now));
            }
        }
    }

    /// Compares the lives with lists of all timers. What is listed no more must have expired, or
    /// been replaced before its claim ran out: each timer is in one list, or has ended for a
    /// reason.
    pub(super) fn settle(&mut self, listed: &[Listed], dead: &[DeadTimer], now: StoreTime) {
        let name_of = |listed: &Listed| listed.key.as_deref().map(Name::of_key);
        let rows = listed.iter().map(|listed| (name_of(listed), listed));
        let rows: BTreeMap<Option<Name>, &Listed> = rows.collect();
        let mut expired = 0;
        let mut freed = Vec::new();
        self.lives.retain(|id, life| {
            let row = rows.get(&Some(life.timer.name.clone()));
            match life.stage {
                Stage::Dead => return true,
                Stage::Waits if row.is_some_and(|row| row.id == *id) => return true,
                Stage::Runs if row.is_some_and(|row| row.running) => return true,
                Stage::Waits => assert!(life.due <= now, "lost: {life:?}"),
                Stage::Runs => assert!(life.has_run_out(now), "lost: {life:?}"),
            }
            if life.replaced {
                freed.push(life.timer.name.clone());
            } else {
                assert!(life.has_expired(now), "lost: {life:?}");
                expired += 1;
            }
            false
        });
        for name in &freed {
            self.end_run(name, now);
        }
        assert_eq!(std::mem::take(&mut self.expired), expired);
        for row in listed {
            self.check(row, name_of(row).expect("each timer here has a key"));
        }
        let wanted = self.lives.values().filter(|it| it.stage == Stage::Dead);
        let wanted: BTreeSet<(i64, &[u8])> = wanted.map(Self::seen).collect();
        let dead = dead.iter().map(|dead| (dead.id, &*dead.payload));
        assert_eq!(dead.collect::<BTreeSet<_>>(), wanted);
    }

    fn seen(life: &Life) -> (i64, &[u8]) {
        (life.timer.id, &life.timer.payload)
    }

    /// Compares what is listed of a key.
    fn check(&self, listed: &Listed, name: Name) {
        let running = self.of(&name, Stage::Runs);
        assert_eq!(listed.running, running.is_some(), "{listed:?}");
        let Some(life) = self.of(&name, Stage::Waits).or(running) else {
            panic!("a timer that has ended is listed: {listed:?}");
        };
        let mut wanted = Self::seen(life);
        if life.replaced {
            // What was to take its place was cancelled: nobody sees either payload.
            wanted.1 = &[];
        }
        assert_eq!((listed.id, &*listed.payload), wanted);
        assert_eq!(listed.attempts, life.attempts, "{listed:?}");
        let is_put_off = life.due < listed.at && life.put_off.contains(&listed.at);
        assert!(listed.at == life.due || is_put_off, "{listed:?}, {life:?}");
    }

    /// Returns whether all timers but dead ones have ended.
    pub(super) fn is_over(&self) -> bool {
        self.lives.values().all(|life| life.stage == Stage::Dead)
    }
}
