//! One namespace on several primaries: each serves some slots, and slots move while all runs.

use crate::durable::bulk::FIRST;
use crate::durable::{Durable, DurableBuilder, hash};
use crate::entry::{
    Cancelled, DeadTimer, Due, Entry, Error, Listed, Outcome, Paused, Pending, Scheduled, Search,
    Touched, When,
};
use crate::node::batcher::fitting_rows;
use crate::store::postgres::{Postgres, PostgresServer};
use crate::store::{Answer, Bulk, NewRow, Place, Store, StoreTime};
use crate::sync::{Mutex, lock};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tickwheel::Timer;

/// A node of a namespace that lies on several PostgreSQL primaries.
///
/// Each of the namespace's 1,024 slots is served by one primary, and a key's slot follows from the
/// key. On each primary this is a [node of its own](Durable), with a lease of its own: when one
/// primary fails, the timers of the others go on. The primaries themselves know which slots they
/// serve, so all nodes agree.
///
/// Cloning shares the node.
#[derive(Clone)]
pub struct Sharded {
    nodes: Vec<Durable<Postgres>>,
    /// Which of them serves each slot, as far as is known here. Locked for a look, or for a step
    /// for each slot.
    map: Arc<Mutex<Vec<Option<usize>>>>,
}

/// How long a call waits for a slot that moves.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);
/// How many slots are moved at once: as long as these take, their timers wait.
const MOVED: u32 = 32;

impl Sharded {
    /// Starts a node on each of these primaries; see [`DurableBuilder::start`].
    ///
    /// All nodes must name the same primaries in the same order. A new namespace is served by the
    /// first one alone, and a primary that is added serves nothing:
    /// [`move_slots`](Self::move_slots) gives it its share.
    ///
    /// # Errors
    /// What opening a store says; [`Error::Unavailable`] where two primaries serve one slot: then
    /// these are not the primaries of one namespace.
    ///
    /// # Panics
    /// Outside of a tokio runtime, and without any primary.
    pub async fn start<T, H, F>(
        primaries: Vec<DurableBuilder<PostgresServer>>,
        timer: &Timer<T>,
        handler: H,
    ) -> Result<Self, Error>
    where
        T: Send + 'static,
        H: Fn(Due) -> F + Send + Sync + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        let mut opened: Vec<DurableBuilder<Postgres>> = Vec::new();
        let mut map = vec![None; 0];
        // The first one last: it serves all of a namespace that no other one serves.
        for (index, builder) in primaries.into_iter().enumerate().rev() {
            let is_new = map.iter().all(Option::is_none);
            let store = builder.store.open_as(index == 0 && is_new).await?;
            map.resize(store.slots() as usize, None);
            for (slot, served) in map.iter_mut().zip(store.served().await?) {
                if served && slot.replace(index).is_some() {
                    return Err(Error::unavailable("two primaries serve one slot"));
                }
            }
            opened.push(DurableBuilder { store, options: builder.options });
        }
        assert!(!opened.is_empty(), "there is no primary");
        let handler = Arc::new(handler);
        let mut nodes = Vec::new();
        for builder in opened.into_iter().rev() {
            let handler = Arc::clone(&handler);
            nodes.push(builder.start(timer, move |due| handler(due)).await?);
        }
        Ok(Sharded { nodes, map: Arc::new(Mutex::new(map)) })
    }

    /// Returns the nodes on the primaries, in order: for their [`stats`](Durable::stats).
    pub fn nodes(&self) -> &[Durable<Postgres>] {
        &self.nodes
    }

    /// Returns for each slot which primary serves it; `None` while it moves.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if a primary does not answer.
    pub async fn map(&self) -> Result<Vec<Option<usize>>, Error> {
        for primary in 0..self.nodes.len() {
            self.look(primary).await?;
        }
        Ok(lock(&self.map).clone())
    }

    /// Moves a range of slots to a primary, while everything runs: 32 slots at a time, whose timers
    /// wait until their handlers have ended, at most two seconds, and their rows are copied. What
    /// handlers still have then runs again on the other primary.
    ///
    /// If it fails, or its future is dropped, some slots may be closed: their calls wait. To ask
    /// again for the same primary ends what was begun. Rows may take any time to copy, so nothing
    /// bounds it while its connections stay open: wrap it in `tokio::time::timeout`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and [`Error::Uncertain`].
    ///
    /// # Panics
    /// If there is no such primary.
    pub async fn move_slots(&self, slots: Range<u32>, to: usize) -> Result<(), Error> {
        let target = self.nodes[to].store();
        let slots = slots.start..slots.end.min(target.slots());
        for first in slots.clone().step_by(MOVED as usize) {
            let some: Vec<u32> = (first..slots.end.min(first + MOVED)).collect();
            for (index, node) in self.nodes.iter().enumerate().filter(|(index, _)| *index != to) {
                let is_here = node.store().holds(&some).await?;
                let own = some.iter().zip(is_here).filter(|(_, is_here)| *is_here);
                let own: Vec<u32> = own.map(|(slot, _)| *slot).collect();
                if !own.is_empty() {
                    node.store().move_to(target, &own).await?;
                    self.look(index).await?;
                }
            }
            self.look(to).await?;
        }
        Ok(())
    }

    /// Leaves all primaries: see [`Durable::drain`].
    pub async fn drain(&self) {
        for node in &self.nodes {
            node.drain().await;
        }
    }

    /// Calls the node on the primary that serves a slot; waits while that moves.
    async fn at<'a, A, F: Answer<A>>(
        &'a self,
        slot: u32,
        call: impl Fn(&'a Durable<Postgres>) -> F,
    ) -> Result<A, Error> {
        let begun = Instant::now();
        loop {
            let primary = lock(&self.map)[slot as usize];
            if let Some(primary) = primary {
                match call(&self.nodes[primary]).await {
                    Err(Error::Moved) => {}
                    answer => return answer,
                }
            }
            self.wait(begun).await?;
        }
    }

    /// Waits a moment, and looks who serves what.
    async fn wait(&self, begun: Instant) -> Result<(), Error> {
        if begun.elapsed() > PATIENCE {
            return Err(Error::Moved);
        }
        tokio::time::sleep(PAUSE).await;
        for primary in 0..self.nodes.len() {
            let _ = self.look(primary).await; // One that does not answer serves what it did.
        }
        Ok(())
    }

    /// Looks what a primary serves.
    async fn look(&self, primary: usize) -> Result<(), Error> {
        let served = self.nodes[primary].store().served().await?;
        for (slot, served) in lock(&self.map).iter_mut().zip(served) {
            if served || *slot == Some(primary) {
                *slot = served.then_some(primary);
            }
        }
        Ok(())
    }

    /// Calls the node on each primary.
    async fn all<'a, A, F: Answer<A>>(
        &'a self,
        call: impl Fn(&'a Durable<Postgres>) -> F,
    ) -> Result<Vec<A>, Error> {
        let mut answers = Vec::new();
        for node in &self.nodes {
            answers.push(call(node).await?);
        }
        Ok(answers)
    }
}

impl fmt::Debug for Sharded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharded").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

impl Sharded {
    /// Schedules a timer: see [`Durable::schedule`].
    ///
    /// # Errors
    /// As there; [`Error::Moved`] if its slot has moved for 30 s.
    pub async fn schedule(&self, entry: Entry) -> Result<Scheduled, Error> {
        let row = self.row(entry)?;
        self.at(row.place.slot, |node| node.schedule_row(on(node, row.clone()))).await
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
                let primary = lock(&self.map)[row.place.slot as usize];
                by_primary.entry(primary).or_default().push((number, row));
            }
            open = Vec::new();
            for (primary, mut rows) in by_primary {
                if let Some(primary) = primary {
                    self.schedule_some(primary, &mut rows, &mut answers).await?;
                }
                open.extend(rows);
            }
            open.sort_by_key(|(number, _)| *number);
            if !open.is_empty() {
                self.wait(begun).await?;
            }
        }
        Ok(answers)
    }

    /// Schedules rows on one primary, in order, and leaves those that it does not serve and what
    /// comes after them.
    async fn schedule_some(
        &self,
        primary: usize,
        rows: &mut Vec<(usize, NewRow)>,
        answers: &mut [Scheduled],
    ) -> Result<(), Error> {
        let node = &self.nodes[primary];
        while !rows.is_empty() {
            let count = fitting_rows(rows.iter().map(|(_, row)| row));
            let batch = rows[..count].iter().map(|(_, row)| on(node, row.clone())).collect();
            match node.schedule_batch(batch).await {
                Ok(some) => {
                    for ((number, _), answer) in rows.drain(..count).zip(some) {
                        answers[number] = answer;
                    }
                }
                Err(Error::Moved) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Cancels a key's timer: see [`Durable::cancel`].
    ///
    /// # Errors
    /// As there; [`Error::Moved`] if its slot has moved for 30 s: nothing was cancelled.
    pub async fn cancel(&self, key: &str) -> Result<Cancelled, Error> {
        self.of(key, |node| node.cancel(key)).await
    }

    /// Moves a key's timer to another moment: see [`Durable::touch`].
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel).
    pub async fn touch(&self, key: &str, when: impl Into<When>) -> Result<Touched, Error> {
        let when = when.into();
        self.of(key, |node| node.touch(key, when)).await
    }

    /// Looks a key up.
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel).
    pub async fn get(&self, key: &str) -> Result<Option<Pending>, Error> {
        self.of(key, |node| node.get(key)).await
    }

    /// Cancels all timers of a tag that no handler has: see [`Durable::cancel_tag`]. Asks all
    /// primaries, and again where slots have moved meanwhile.
    ///
    /// # Errors
    /// As for [`Durable::cancel_tag`]; [`Error::Moved`] if slots have moved for 30 s.
    pub async fn cancel_tag(&self, tag: &str) -> Result<u64, Error> {
        self.each(|node| node.cancel_tag(tag)).await
    }

    /// Moves all timers of a tag that no handler has: see [`Durable::touch_tag`]. Where slots have
    /// moved meanwhile, what has run since is moved again.
    ///
    /// # Errors
    /// As for [`cancel_tag`](Self::cancel_tag).
    pub async fn touch_tag(&self, tag: &str, when: impl Into<When>) -> Result<u64, Error> {
        // The same moment on each, and each time: what is due then is not counted again.
        let touch = Bulk::Touch(self.nodes[0].resolve(when), FIRST);
        self.each(|node| node.steps(Some(tag), touch)).await
    }

    /// Makes timers that were given up due at once: see [`Durable::requeue_all`].
    ///
    /// # Errors
    /// As for [`cancel_tag`](Self::cancel_tag).
    pub async fn requeue_all(&self, tag: Option<&str>) -> Result<u64, Error> {
        let before = self.after_the_dead().await?;
        self.each(|node| node.steps(tag, Bulk::Requeue(before))).await
    }

    /// Deletes timers that were given up: see [`Durable::delete_dead`].
    ///
    /// # Errors
    /// As for [`cancel_tag`](Self::cancel_tag).
    pub async fn delete_dead(&self, tag: Option<&str>) -> Result<u64, Error> {
        let before = self.after_the_dead().await?;
        self.each(|node| node.steps(tag, Bulk::Delete(before))).await
    }

    /// Returns the latest of what the primaries say: who died keeps that time on another one.
    async fn after_the_dead(&self) -> Result<StoreTime, Error> {
        let all = self.all(|node| node.store().after_the_dead()).await?;
        Ok(all.into_iter().max().unwrap_or_default())
    }

    /// Holds timers back until a time: see [`Durable::pause`].
    ///
    /// # Errors
    /// As for [`cancel_tag`](Self::cancel_tag).
    pub async fn pause(&self, tag: Option<&str>, until: impl Into<When>) -> Result<(), Error> {
        // The same moment on each: a timer that moves is let go there as well.
        let until = When::At(self.nodes[0].resolve(until).into());
        self.each(|node| async move { node.pause(tag, until).await.map(|()| 0) }).await.map(drop)
    }

    /// Ends a pause: see [`Durable::resume`].
    ///
    /// # Errors
    /// As for [`cancel_tag`](Self::cancel_tag).
    pub async fn resume(&self, tag: Option<&str>) -> Result<u64, Error> {
        self.each(|node| node.resume(tag)).await
    }

    /// Lists the pauses that are not over: see [`Durable::pauses`].
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn pauses(&self) -> Result<Vec<Paused>, Error> {
        let mut all = self.all(Durable::pauses).await?.concat();
        all.sort(); // The latest of a tag comes last, and stays.
        let latest: BTreeMap<_, _> = all.into_iter().map(|it| (it.tag, it.until)).collect();
        Ok(latest.into_iter().map(|(tag, until)| Paused { tag, until }).collect())
    }

    /// Adds up what the nodes on all primaries change, until no slot moves meanwhile.
    async fn each<'a, F: Answer<u64>>(
        &'a self,
        call: impl Fn(&'a Durable<Postgres>) -> F,
    ) -> Result<u64, Error> {
        let (begun, mut all) = (Instant::now(), 0);
        loop {
            let before = self.map().await?;
            all += self.all(&call).await?.iter().sum::<u64>();
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
        for counts in self.all(|node| node.histogram(range.clone(), bars)).await? {
            sums.resize(counts.len(), 0);
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        Ok(sums)
    }

    /// Lists timers of all primaries: see [`Durable::list`]. One that moves may be listed twice or
    /// not at all.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn list(&self, search: Search) -> Result<Vec<Listed>, Error> {
        let pages = self.all(|node| node.list(search.clone())).await?;
        Ok(first(pages, search.limit))
    }

    /// Lists timers that were given up: see [`Durable::dead`], and [`list`](Self::list).
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn dead(&self, search: Search) -> Result<Vec<DeadTimer>, Error> {
        let pages = self.all(|node| node.dead(search.clone())).await?;
        Ok(first(pages, search.limit))
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

    async fn of<'a, A, F: Answer<A>>(
        &'a self,
        key: &str,
        call: impl Fn(&'a Durable<Postgres>) -> F,
    ) -> Result<A, Error> {
        let store = self.nodes[0].store();
        let slot = store.slot(hash(key)) - store.slot(0);
        self.at(slot, call).await
    }
}

/// Returns a row as it is stored on a node's primary.
fn on(node: &Durable<Postgres>, mut row: NewRow) -> NewRow {
    row.place.slot += node.store().slot(0);
    row
}

/// Returns the first of what the nodes on all primaries list.
fn first<A>(pages: Vec<Vec<A>>, limit: u32) -> Vec<A>
where
    for<'a> &'a A: Into<Place>,
{
    let mut all: Vec<A> = pages.into_iter().flatten().collect();
    all.sort_by_key(|timer| -> Place { timer.into() });
    all.truncate(limit as usize);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Outcome;

    /// Compiles only if each call can be made in a task that is spawned. Never called.
    #[allow(dead_code)]
    fn calls_can_be_spawned(node: &'static Sharded, search: Search, timer: &'static Timer) {
        fn spawned(_: impl Future<Output: Sized> + Send + 'static) {}
        let handler = |_| async { Outcome::Done };
        spawned(Sharded::start(vec![Durable::postgres(Default::default())], timer, handler));
        spawned(node.map());
        spawned(node.move_slots(0..1, 0));
        spawned(node.drain());
        let entry = || Entry::keyed("key", Duration::ZERO, "");
        spawned(node.schedule(entry()));
        spawned(node.schedule_many(vec![entry()]));
        spawned(node.cancel("key"));
        spawned(node.touch("key", Duration::ZERO));
        spawned(node.get("key"));
        spawned(node.touch_tag("tag", Duration::ZERO));
        spawned(node.requeue_all(None));
        spawned(node.pause(None, Duration::ZERO));
        spawned(node.resume(None));
        spawned(node.pauses());
        spawned(node.histogram(SystemTime::now()..SystemTime::now(), 1));
        spawned(node.list(search.clone()));
        spawned(node.dead(search));
        spawned(node.requeue(1));
    }
}
