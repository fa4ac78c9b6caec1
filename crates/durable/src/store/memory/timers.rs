//! The timers of a store in memory: a sorted map, and their keys.

use crate::entry::{Cancelled, DeadTimer, Listed, Pending, Scheduled, Search, Touched};
use crate::store::{
    ALONE, Ack, Bulk, Claim, ClaimedRow, Claims, Ending, Former, KeyName, NewRow, Page, Place,
    Scope, Step, StoreTime, Suspect, Written,
};
use std::collections::{BTreeMap, HashMap, HashSet};

#[derive(Debug, Default)]
pub(super) struct Timers {
    rows: BTreeMap<Place, Row>,
    keys: HashMap<KeyName, Place>,
    /// Those that died, and why, in places that have the times of that.
    dead: BTreeMap<Place, (Row, String)>,
    /// Until when all, or those of a tag, are paused.
    pub(super) pauses: HashMap<Option<String>, StoreTime>,
}

#[derive(Clone, Debug, Default)]
struct Row {
    key: Option<String>,
    tag: Option<String>,
    payload: Vec<u8>,
    /// The epoch in which it was claimed; 0 if it is not.
    claim: i64,
    attempts: u32,
    crashes: u32,
    /// Whether it was cancelled while it was claimed.
    cancelled: bool,
    /// Until when a debounce may put it off.
    until: Option<StoreTime>,
    /// When it was due before it was put off.
    planned: Option<StoreTime>,
}

fn name(place: &Place, row: &Row) -> Option<KeyName> {
    row.key.as_ref().map(|key| KeyName {
        slot: place.slot,
        key: key.clone(),
    })
}

fn is_found(search: &Search, place: &Place, row: &Row) -> bool {
    let Search {
        tag,
        prefix,
        running,
        after,
        before,
        ..
    } = search;
    let begins = |prefix: &str| row.key.as_ref().is_some_and(|it| it.starts_with(prefix));
    place > after
        && before.is_none_or(|before| place.due < before)
        && (tag.is_none() || *tag == row.tag)
        && prefix.as_deref().is_none_or(begins)
        && running.is_none_or(|running| running == (row.claim != 0))
}

impl Timers {
    /// Returns when the first is due.
    pub(super) fn first(&self) -> StoreTime {
        self.rows
            .keys()
            .next()
            .map_or(StoreTime::MAX, |place| place.due)
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn load(&self, page: &Page) -> Vec<Place> {
        let Page {
            slots,
            after,
            before,
            limit,
        } = page;
        let places = self
            .rows
            .keys()
            .filter(|place| *place > after && place.due < *before);
        let places = places.filter(|place| slots.contains(&place.slot));
        places.take(*limit as usize).copied().collect()
    }

    pub(super) fn write(&mut self, mut new: NewRow, now: StoreTime) -> Written {
        let name = new.key.clone().map(|key| KeyName {
            slot: new.place.slot,
            key,
        });
        let (place, former) = name
            .and_then(|name| self.find(&name))
            .map(|(place, row)| {
                let Row {
                    until,
                    claim,
                    cancelled,
                    ..
                } = *row;
                (
                    place,
                    Former {
                        until,
                        claimed: claim != 0,
                        cancelled,
                    },
                )
            })
            .unzip();
        let written = new.settle(former, now);
        if written.answer != Scheduled::Kept {
            place.map(|former| self.delete(&former));
            let NewRow {
                place,
                key,
                tag,
                payload,
                until,
                planned,
                ..
            } = new;
            self.insert(
                place,
                Row {
                    key,
                    tag,
                    payload,
                    until,
                    planned,
                    ..Row::default()
                },
            );
        }
        written
    }

    pub(super) fn cancel(&mut self, key: &KeyName) -> Cancelled {
        match self.find(key) {
            None => Cancelled::Unknown,
            Some((_, row)) if row.claim != 0 => {
                row.cancelled = true;
                Cancelled::Running
            }
            Some((place, _)) => Cancelled::Cancelled(self.delete(&place).payload),
        }
    }

    /// Returns what became of a touch, and the place if it was moved.
    pub(super) fn touch(&mut self, key: &KeyName, due: StoreTime) -> (Touched, Option<Place>) {
        match self.find(key) {
            None => (Touched::Unknown, None),
            Some((_, row)) if row.claim != 0 => (Touched::Running, None),
            Some((place, _)) => {
                let row = Row {
                    planned: None,
                    ..self.delete(&place)
                };
                (
                    Touched::Moved,
                    Some(self.insert(Place { due, ..place }, row)),
                )
            }
        }
    }

    /// Returns what became of a step, and the places of timers that it moved.
    pub(super) fn bulk(
        &mut self,
        scope: &Scope,
        bulk: Bulk,
        limit: usize,
        now: StoreTime,
    ) -> (Step, Vec<Place>) {
        let is_meant = |place: &Place, row: &Row| {
            (scope.tag.is_none() || scope.tag == row.tag)
                && scope.id.is_none_or(|id| id == place.id)
        };
        let places: Vec<Place> = match bulk {
            Bulk::Cancel | Bulk::Touch(..) | Bulk::Release(_) => {
                let is_held = |at: &Place, row: &Row| at.due.is_marked() && row.planned.is_some();
                let is_free = |place: &Place, row: &Row| match bulk {
                    Bulk::Release(to) => is_held(place, row) && place.due > self.held(row, to),
                    Bulk::Touch(to, from) => place.due != to && (place.slot, place.id) >= from,
                    _ => true,
                };
                let rows = self.rows.iter().filter(|(place, row)| is_meant(place, row));
                let free = rows.filter(|(place, row)| row.claim == 0 && is_free(place, row));
                let mut free: Vec<Place> = free.map(|(place, _)| *place).collect();
                free.sort_by_key(|place| (place.slot, place.id));
                free.truncate(limit);
                free
            }
            Bulk::Requeue(before) | Bulk::Delete(before) => {
                let mut keys = HashSet::new();
                let mut is_free = |place: &Place, row: &Row| {
                    let name = name(place, row);
                    name.is_none_or(|name| !self.keys.contains_key(&name) && keys.insert(name))
                };
                let dead = self.dead.iter().filter(|(place, (row, _))| {
                    let is_old = scope.id.is_some() || place.due < before;
                    let is_deleted = matches!(bulk, Bulk::Delete(_));
                    is_old && is_meant(place, row) && (is_deleted || is_free(place, row))
                });
                dead.map(|(place, _)| *place).take(limit).collect()
            }
        };
        let moved = places
            .iter()
            .filter_map(|place| self.change(place, bulk, now))
            .collect();
        let last = places.last().filter(|_| places.len() == limit);
        let more = last.map(|last| (last.slot, last.id.saturating_add(1)));
        (
            Step {
                count: places.len() as u64,
                more,
            },
            moved,
        )
    }

    /// Changes one of many, and returns its place if it is due at another time.
    fn change(&mut self, place: &Place, bulk: Bulk, now: StoreTime) -> Option<Place> {
        let (due, row) = match bulk {
            Bulk::Cancel => {
                self.delete(place);
                return None;
            }
            Bulk::Delete(_) => {
                self.dead.remove(place);
                return None;
            }
            Bulk::Touch(due, _) => (
                due,
                Row {
                    planned: None,
                    ..self.delete(place)
                },
            ),
            Bulk::Release(to) => {
                let row = self.delete(place);
                (self.held(&row, to), row)
            }
            Bulk::Requeue(before) => {
                let (
                    Row {
                        key, tag, payload, ..
                    },
                    _,
                ) = self.dead.remove(place)?;
                (
                    now.max(before),
                    Row {
                        key,
                        tag,
                        payload,
                        ..Row::default()
                    },
                )
            }
        };
        Some(self.insert(Place { due, ..*place }, row))
    }

    /// Claims a timer that is due, or tells why not.
    pub(super) fn claim(&mut self, claim: Claim, crashes: u32, answer: &mut Claims) {
        let place = claim.place;
        let Some(row) = self.rows.get(&place).filter(|row| row.claim <= claim.epoch) else {
            return;
        };
        if row.cancelled {
            self.delete(&place);
            return;
        }
        let held = Some(self.held(row, answer.now)).filter(|until| *until > answer.now);
        let again = row.claim == claim.epoch;
        let crashed = row.claim != 0 && !again && row.crashes < ALONE;
        let in_crashes = row.crashes + u32::from(crashed);
        if let Some(due) = held {
            let row = self.delete(&place);
            let planned = row.planned.or(Some(place.due));
            let attempts = row.attempts - u32::from(again);
            let row = Row {
                planned,
                attempts,
                claim: 0,
                crashes: in_crashes,
                ..row
            };
            answer.held.push(self.insert(Place { due, ..place }, row));
        } else if in_crashes > crashes {
            let attempts = row.attempts;
            answer.suspects.push(Suspect {
                crashes: in_crashes,
                attempts,
                place,
            });
        } else if let Some(row) = self.rows.get_mut(&place) {
            (row.claim, row.crashes) = (claim.epoch, in_crashes);
            row.attempts += u32::from(!again);
            let planned = row.planned.unwrap_or(place.due);
            let Row {
                key,
                tag,
                payload,
                attempts,
                crashes,
                ..
            } = row.clone();
            answer.rows.push(ClaimedRow {
                claim,
                key,
                tag,
                attempts,
                crashes,
                payload,
                planned,
            });
        }
    }

    /// Returns until when pauses hold a timer that is let go at `to`.
    fn held(&self, row: &Row, to: StoreTime) -> StoreTime {
        let pauses = [&None, &row.tag].map(|scope| self.pauses.get(scope).copied());
        pauses.into_iter().flatten().fold(to, StoreTime::max)
    }

    pub(super) fn acknowledge(&mut self, ack: Ack, now: StoreTime) {
        let place = ack.claim.place;
        if self
            .rows
            .get(&place)
            .is_none_or(|row| row.claim != ack.claim.epoch)
        {
            return;
        }
        let row = Row {
            claim: 0,
            until: None,
            ..self.delete(&place)
        };
        match ack.ending {
            Ending::Done => {}
            Ending::Retry(_) | Ending::Again { .. } if row.cancelled => {}
            Ending::Retry(due) => {
                let planned = row.planned.or(Some(place.due));
                self.insert(Place { due, ..place }, Row { planned, ..row });
            }
            Ending::Again {
                due,
                planned,
                payload,
            } => {
                let Row { key, tag, .. } = row;
                let row = Row {
                    key,
                    tag,
                    payload,
                    planned,
                    ..Row::default()
                };
                self.insert(Place { due, ..place }, row);
            }
            Ending::Dead(reason) => {
                self.dead.insert(Place { due: now, ..place }, (row, reason));
            }
        }
    }

    pub(super) fn get(&mut self, key: &KeyName) -> Option<Pending> {
        let (place, row) = self.find(key)?;
        let Row {
            payload,
            attempts,
            claim,
            ..
        } = row.clone();
        Some(Pending {
            at: place.due,
            payload,
            attempts,
            running: claim != 0,
        })
    }

    pub(super) fn list(&self, search: &Search) -> Vec<Listed> {
        let listed = |(place, row): (&Place, &Row)| {
            let Row {
                key,
                tag,
                payload,
                attempts,
                claim,
                ..
            } = row.clone();
            Listed::new(*place, key, tag, payload, (attempts, claim != 0))
        };
        let found = self
            .rows
            .iter()
            .filter(|(place, row)| is_found(search, place, row));
        found.map(listed).take(search.limit as usize).collect()
    }

    pub(super) fn count(&self, from: StoreTime, to: StoreTime) -> u64 {
        let places = self
            .rows
            .keys()
            .filter(|place| from <= place.due && place.due < to);
        places.count() as u64
    }

    pub(super) fn dead(&self, search: &Search) -> Vec<DeadTimer> {
        let tell = |(place, (row, reason)): (&Place, &(Row, String))| {
            let (
                Row {
                    key,
                    tag,
                    payload,
                    attempts,
                    ..
                },
                reason,
            ) = (row.clone(), reason.clone());
            let Place {
                due: died,
                slot,
                id,
            } = *place;
            DeadTimer {
                id,
                key,
                payload,
                tag,
                attempts,
                reason,
                died,
                slot,
            }
        };
        let found = self
            .dead
            .iter()
            .filter(|(place, (row, _))| is_found(search, place, row));
        found.map(tell).take(search.limit as usize).collect()
    }

    fn find(&mut self, key: &KeyName) -> Option<(Place, &mut Row)> {
        let place = *self.keys.get(key)?;
        Some((place, self.rows.get_mut(&place)?))
    }

    fn insert(&mut self, place: Place, row: Row) -> Place {
        if let Some(name) = name(&place, &row) {
            self.keys.insert(name, place);
        }
        self.rows.insert(place, row);
        place
    }

    fn delete(&mut self, place: &Place) -> Row {
        let row = self
            .rows
            .remove(place)
            .expect("a place that was found under this lock");
        if let Some(name) = name(place, &row) {
            self.keys.remove(&name);
        }
        row
    }
}
