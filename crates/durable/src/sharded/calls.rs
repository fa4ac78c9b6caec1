//! The calls on timers, each by the node on the primary that serves the slot.

use crate::answer::{Cancelled, DeadTimer, Pending, Scheduled, Touched};
use crate::durable::Durable;
use crate::entry::{Entry, When};
use crate::error::Error;
use crate::hash::hash;
use crate::node::batcher::BATCH;
use crate::sharded::Sharded;
use crate::store::postgres::Postgres;
use crate::store::{NewRow, Store};
use std::collections::{BTreeMap, HashSet};
use std::future::Future;
use std::ops::Range;
use std::time::{Instant, SystemTime};

impl Sharded {
    /// Schedules a timer: see [`Durable::schedule`].
    ///
    /// # Errors
    /// As there; [`Error::Moved`] if its slot has moved for 30 s.
    pub async fn schedule(&self, entry: Entry) -> Result<Scheduled, Error> {
        let row = self.row(entry)?;
        self.at(row.place.slot, |node| {
            let row = on(&node, row.clone());
            async move { node.schedule_row(row).await }
        })
        .await
    }

    /// Schedules many timers: see [`Durable::schedule_many`].
    ///
    /// # Errors
    /// As there, and for [`schedule`](Self::schedule). Some of them may be scheduled by then.
    pub async fn schedule_many(&self, entries: Vec<Entry>) -> Result<Vec<Scheduled>, Error> {
        let rows = entries.into_iter().map(|entry| self.row(entry));
        let rows = rows.collect::<Result<Vec<NewRow>, Error>>()?;
        let mut answers = vec![Scheduled::New; rows.len()];
        let mut open: Vec<(usize, NewRow)> = rows.into_iter().enumerate().collect();
        let begun = Instant::now();
        while !open.is_empty() {
            let mut by_primary: BTreeMap<Option<usize>, Vec<(usize, NewRow)>> = BTreeMap::new();
            for (number, row) in open {
                let primary = self.lock()[row.place.slot as usize];
                by_primary.entry(primary).or_default().push((number, row));
            }
            open = Vec::new();
            for (primary, rows) in by_primary {
                open.extend(match primary {
                    Some(primary) => self.schedule_some(primary, rows, &mut answers).await?,
                    None => rows,
                });
            }
            open.sort_by_key(|(number, _)| *number);
            if !open.is_empty() {
                self.wait(begun).await?;
            }
        }
        Ok(answers)
    }

    /// Schedules rows on one primary, in order, and returns those that it does not serve and what
    /// comes after them.
    async fn schedule_some(
        &self,
        primary: usize,
        rows: Vec<(usize, NewRow)>,
        answers: &mut [Scheduled],
    ) -> Result<Vec<(usize, NewRow)>, Error> {
        let node = &self.nodes[primary];
        let mut rest = rows;
        while !rest.is_empty() {
            let mut keys = HashSet::new();
            let is_new = |(_, row): &(usize, NewRow)| match &row.key {
                Some(key) => keys.insert(key.clone()),
                None => true,
            };
            let count = rest.iter().take(BATCH).map(is_new).take_while(|is_new| *is_new).count();
            let batch = rest[..count].iter().map(|(_, row)| on(node, row.clone())).collect();
            match node.schedule_batch(batch).await {
                Ok(some) => {
                    for ((number, _), answer) in rest.drain(..count).zip(some) {
                        answers[number] = answer;
                    }
                }
                Err(Error::Moved) => return Ok(rest),
                Err(error) => return Err(error),
            }
        }
        Ok(rest)
    }

    /// Cancels a key's timer: see [`Durable::cancel`].
    ///
    /// # Errors
    /// As there; [`Error::Moved`] if its slot has moved for 30 s: nothing was cancelled.
    pub async fn cancel(&self, key: &str) -> Result<Cancelled, Error> {
        self.of(key, |node, key| async move { node.cancel(&key).await }).await
    }

    /// Moves a key's timer to another moment: see [`Durable::touch`].
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel).
    pub async fn touch(&self, key: &str, when: impl Into<When>) -> Result<Touched, Error> {
        let when = when.into();
        self.of(key, move |node, key| async move { node.touch(&key, when).await }).await
    }

    /// Looks a key up.
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel).
    pub async fn get(&self, key: &str) -> Result<Option<Pending>, Error> {
        self.of(key, |node, key| async move { node.get(&key).await }).await
    }

    /// Cancels all timers of a tag that no handler has: see [`Durable::cancel_tag`]. Asks all
    /// primaries, and again where slots have moved meanwhile.
    ///
    /// # Errors
    /// As for [`Durable::cancel_tag`]; [`Error::Moved`] if slots have moved for 30 s.
    pub async fn cancel_tag(&self, tag: &str) -> Result<u64, Error> {
        let (begun, mut all) = (Instant::now(), 0);
        loop {
            let before = self.map().await?;
            for node in &self.nodes {
                all += node.cancel_tag(tag).await?;
            }
            if before.iter().all(Option::is_some) && self.map().await? == before {
                return Ok(all);
            }
            self.wait(begun).await?;
        }
    }

    /// Counts what is due when: see [`Durable::histogram`]. A timer that moves may be counted twice
    /// or not at all.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn histogram(&self, range: Range<SystemTime>, bars: u32) -> Result<Vec<u64>, Error> {
        let mut sums = Vec::new();
        for node in &self.nodes {
            let counts = node.histogram(range.clone(), bars).await?;
            sums.resize(counts.len(), 0);
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        Ok(sums)
    }

    /// Returns timers that were given up, at most `limit` of each primary.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn dead(&self, limit: u32) -> Result<Vec<DeadTimer>, Error> {
        let mut all = Vec::new();
        for node in &self.nodes {
            all.extend(node.dead(limit).await?);
        }
        Ok(all)
    }

    /// Makes a timer that was given up due at once: see [`Durable::requeue`].
    ///
    /// # Errors
    /// As there.
    pub async fn requeue(&self, id: i64) -> Result<bool, Error> {
        for node in &self.nodes {
            if node.requeue(id).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns a row whose slot is the number in the namespace.
    fn row(&self, entry: Entry) -> Result<NewRow, Error> {
        let mut row = self.nodes[0].row(entry)?;
        row.place.slot -= self.nodes[0].store().slot(0);
        Ok(row)
    }

    async fn of<A, F>(
        &self,
        key: &str,
        call: impl Fn(Durable<Postgres>, String) -> F,
    ) -> Result<A, Error>
    where
        F: Future<Output = Result<A, Error>>,
    {
        let store = self.nodes[0].store();
        let slot = store.slot(hash(key)) - store.slot(0);
        self.at(slot, |node| call(node, key.to_owned())).await
    }
}

/// Returns a row as it is stored on a node's primary.
fn on(node: &Durable<Postgres>, mut row: NewRow) -> NewRow {
    row.place.slot += node.store().slot(0);
    row
}
