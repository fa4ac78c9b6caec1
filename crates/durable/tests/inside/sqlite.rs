//! The store in a file, whose clocks the test sets.

use crate::durable::OpenStore;
use crate::entry::{Cancelled, Entry, Error, Scheduled, Search};
use crate::store::alone::Alone;
use crate::store::conformance::beside::beside_the_model;
use crate::store::conformance::{Bench, everything, groups, table};
use crate::store::rows::Rows;
use crate::store::sqlite::rows::scans::SCANS;
use crate::store::sqlite::{Sqlite, SqliteFile, thread};
use crate::store::states::Row;
use crate::store::{Ack, Claims, Ending, Name, Operations};
use crate::sync::{Mutex, lock};
use crate::when::StoreTime;
use crate::{DurableBuilder, Outcome};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tickwheel::{ManualClock, Timer};

const LEASE: Duration = Duration::from_secs(5);
/// Longer than anything takes that comes.
const PATIENCE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const HOUR_MICROS: i64 = 3_600_000_000;

/// The two clocks of a machine.
#[derive(Clone)]
struct Clocks(Arc<Mutex<Shown>>);

#[derive(Clone, Copy)]
struct Shown {
    /// What the wall's clock would show now, had it not leapt.
    passed: Duration,
    leapt: i64,
    origin: Instant,
}

impl Clocks {
    fn set() -> Self {
        Clocks(Arc::new(Mutex::new(Shown {
            passed: Duration::from_secs(1_750_000_000),
            leapt: 0,
            origin: Instant::now(),
        })))
    }

    fn pass(&self, time: Duration) {
        lock(&self.0).passed += time;
    }

    fn leap(&self, micros: i64) {
        lock(&self.0).leapt += micros;
    }

    async fn open(&self, path: PathBuf) -> Result<Sqlite, Error> {
        let shown = Arc::clone(&self.0);
        let clocks = move || {
            let shown = *lock(&shown);
            let wall = StoreTime::MIN.plus(shown.passed).as_micros() + shown.leapt;
            thread::Shown {
                wall: StoreTime::from_micros(wall),
                steady: shown.origin + shown.passed,
            }
        };
        thread::start(file(&path), Box::new(clocks)).await
    }
}

/// A file in a folder of its own.
struct Bed {
    folder: TempDir,
    clocks: Clocks,
    store: Sqlite,
}

impl Bed {
    async fn make() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clocks = Clocks::set();
        let store = clocks.open(folder.path().join("timers")).await.unwrap();
        Bed {
            folder,
            clocks,
            store,
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("timers")
    }

    async fn schedule(&self, key: &str, delay: Duration) -> Scheduled {
        let timer = Entry::keyed(key, delay, "x").timer().unwrap();
        let changed = self.store.schedule(vec![timer], false).await.unwrap();
        changed.answers[0].unwrap()
    }

    async fn claim(&self) -> Claims {
        self.store.claim(everything(10)).await.unwrap()
    }

    async fn take_over(&self) -> usize {
        let claims = self.store.take_over(100, 100, LEASE).await.unwrap();
        claims.rows.len()
    }
}

impl Bench for Bed {
    type Store = Sqlite;

    fn store(&self) -> &Sqlite {
        &self.store
    }

    async fn pass(&self, time: Duration) {
        self.clocks.pass(time);
    }

    async fn clear(&self) {
        let cleared = self.store.ask(
            |file, _| {
                file.execute_batch("DELETE FROM tickwheel_timer; DELETE FROM tickwheel_pause")
            },
            false,
        );
        cleared.await.unwrap().unwrap();
        // The model begins with a whole microsecond.
        let mut shown = lock(&self.clocks.0);
        shown.passed = Duration::from_micros(shown.passed.as_micros() as u64);
    }

    async fn state(&self, name: &Name) -> &'static str {
        let name = name.clone();
        let row = self.store.with(move |rows, _| rows.load(&name));
        row.await.unwrap().map_or("none", |row| Row::state(&row))
    }
}

fn file(path: &Path) -> SqliteFile {
    SqliteFile {
        path: path.to_owned(),
        makes_tables: true,
    }
}

async fn open(path: &Path) -> Result<Sqlite, Error> {
    file(path).open(Duration::from_secs(5)).await
}

#[tokio::test]
async fn each_cell_of_the_table_holds() {
    let bed = Bed::make().await;
    table(&bed).await;
    groups(&bed).await;
}

#[tokio::test]
async fn it_answers_as_the_model_does() {
    let bed = Bed::make().await;
    for seed in 0..12 {
        beside_the_model(&bed, seed, 400).await;
    }
}

/// Also in an empty table of which the planner was told nothing.
#[tokio::test]
async fn each_statement_takes_its_index() {
    let bed = Bed::make().await;
    let plans = bed.store.ask(
        |file, _| {
            let mut plans = Vec::new();
            for (sql, index) in SCANS {
                let mut plan = file.prepare(&format!("EXPLAIN QUERY PLAN {sql}"))?;
                let nothing = vec![rusqlite::types::Null; plan.parameter_count()];
                let nothing = rusqlite::params_from_iter(nothing);
                let steps = plan.query_map(nothing, |row| row.get::<_, String>(3))?;
                let steps = steps.collect::<Result<Vec<String>, _>>()?;
                plans.push((index, steps.join("; ")));
            }
            Ok::<_, Error>(plans)
        },
        false,
    );
    for (index, plan) in plans.await.unwrap().unwrap() {
        assert!(plan.contains(index), "{plan}");
        assert!(!plan.contains("TEMP B-TREE"), "{plan}");
    }
}

#[tokio::test]
async fn claims_last_as_long_as_before_when_the_clock_leaps() {
    let bed = Bed::make().await;
    for (key, leap) in [("forth", HOUR_MICROS), ("back", -HOUR_MICROS)] {
        bed.schedule(key, Duration::ZERO).await;
        assert_eq!(bed.claim().await.rows.len(), 1);
        bed.clocks.leap(leap);
        bed.clocks.pass(LEASE - Duration::from_micros(1));
        assert_eq!(bed.take_over().await, 0, "its node lives");
        bed.clocks.pass(Duration::from_micros(1));
        assert_eq!(bed.take_over().await, 1);
        assert!(matches!(
            bed.store
                .cancel(vec![Name::of_key(key)])
                .await
                .unwrap()
                .answers[..],
            [Some(Cancelled::Running)]
        ));
    }
}

/// A board without a battery begins in 1970. There the clock is behind the first token.
#[tokio::test]
async fn tokens_rise_also_where_the_clock_is_far_behind() {
    let bed = Bed::make().await;
    bed.clocks.leap(-1_749_990_000_000_000);
    let mut tokens = Vec::new();
    for _ in 0..3 {
        bed.schedule("a", Duration::ZERO).await;
        let claimed = bed.claim().await.rows.remove(0);
        tokens.push(claimed.token);
        let ack = Ack {
            name: claimed.name,
            token: claimed.token,
            ending: Ending::Done,
        };
        let ended = bed.store.acknowledge(vec![ack]).await.unwrap();
        assert_eq!(ended.answers, [Some(true)]);
    }
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}

#[tokio::test]
async fn claims_of_a_former_node_run_out_as_the_file_is_opened() {
    let bed = Bed::make().await;
    bed.schedule("a", Duration::ZERO).await;
    assert_eq!(bed.claim().await.rows.len(), 1);
    assert_eq!(bed.take_over().await, 0);
    let path = bed.path();
    let Bed {
        folder,
        clocks,
        store,
    } = bed;
    drop(store);
    // A clock that was set back meanwhile changes nothing.
    clocks.leap(-HOUR_MICROS);
    let store = clocks.open(path).await.unwrap();
    let bed = Bed {
        folder,
        clocks,
        store,
    };
    assert!(bed.store.look().await.unwrap().lapsed);
    assert_eq!(bed.take_over().await, 1);
    assert_eq!(bed.take_over().await, 0);
}

#[tokio::test]
async fn a_file_that_is_gone_closes_the_store() {
    for replaced in [false, true] {
        let bed = Bed::make().await;
        bed.schedule("a", HOUR).await;
        let path = bed.path();
        std::fs::rename(&path, bed.folder.path().join("moved")).unwrap();
        if replaced {
            std::fs::write(&path, "").unwrap();
        }
        let begun = Instant::now();
        let error = loop {
            assert!(begun.elapsed() < PATIENCE, "its thread looks");
            match bed.store.look().await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::Unavailable(_)), "{error}");
        assert!(
            error.to_string().contains("was deleted or replaced"),
            "{error}"
        );
        // What was written ahead stays with what was there.
        let next = open(&path).await.unwrap();
        assert_eq!(next.list(Search::new(9)).await.unwrap(), []);
        assert!(matches!(bed.store.look().await, Err(Error::Unavailable(_))));
    }
}

#[tokio::test]
async fn what_does_not_fit_is_refused_and_nothing_is_lost() {
    let bed = Bed::make().await;
    bed.schedule("first", HOUR).await;
    let limit = |pages: u32| {
        bed.store.ask(
            move |file, _| {
                let limit = format!("PRAGMA max_page_count = {pages}");
                file.query_row(&limit, [], |_| Ok(()))
            },
            false,
        )
    };
    limit(40).await.unwrap().unwrap();
    let mut taken = vec!["first".to_owned()];
    for number in 0..60 {
        let entry = Entry::keyed(number.to_string(), HOUR, [7; 5_000]);
        let scheduled = bed.store.schedule(vec![entry.timer().unwrap()], false);
        match scheduled.await {
            Ok(_) => taken.push(number.to_string()),
            Err(error) => assert!(matches!(error, Error::Unavailable(_)), "{error}"),
        }
    }
    assert!((2..30).contains(&taken.len()));
    let listed = bed.store.list(Search::new(100)).await.unwrap();
    let mut keys: Vec<String> = listed.into_iter().filter_map(|it| it.key).collect();
    keys.sort();
    taken.sort();
    assert_eq!(keys, taken);
    limit(1_000_000).await.unwrap().unwrap();
    assert_eq!(bed.schedule("last", HOUR).await, Scheduled::New);
}

/// One of the last group fails: so it is seen who is in that.
#[tokio::test]
async fn what_is_alone_parts_what_is_committed_together() {
    let bed = Bed::make().await;
    let store = &bed.store;
    let bad = || Error::unavailable("bad");
    let (go, gone) = mpsc::channel();
    let waits = store.with(move |_, _| gone.recv().map_err(|_| bad()));
    let good = || store.with(|_, _| Ok(()));
    let alone = store.ask(|_, _| Ok::<_, Error>(()), false);
    let bad = store.with(move |_, _| Err::<(), _>(bad()));
    let go = async { go.send(()).is_ok() };
    let (first, before, alone, after, bad, _) = tokio::join!(waits, good(), alone, good(), bad, go);
    assert!(first.is_ok() && before.is_ok() && alone.is_ok());
    assert!(after.is_err() && bad.is_err());
}

/// The node's time hardly passes: it claims only what it is told of.
#[tokio::test]
async fn a_transaction_wakes_the_node() {
    let bed = Bed::make().await;
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    let (fired, mut calls) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |due: crate::Due| {
        fired.send(due.key).unwrap();
        async { Outcome::Done }
    };
    let node = DurableBuilder::new(bed.store).start(&timer, handler);
    let node = node.await.unwrap();
    node.schedule(Entry::keyed("first", Duration::ZERO, ""))
        .await
        .unwrap();
    let mut next = async || {
        // Half a second at most: the next look, which would find the timer as well, comes later.
        for _ in 0..100 {
            clock.advance(Duration::from_millis(5));
            timer.advance_clock(Duration::ZERO);
            tokio::time::sleep(Duration::from_millis(5)).await;
            if let Ok(key) = calls.try_recv() {
                return key;
            }
        }
        panic!("the node claims nothing");
    };
    assert_eq!(next().await.as_deref(), Some("first"));
    let scheduled = node.transact(|it| it.schedule(Entry::keyed("told", Duration::ZERO, "")));
    assert_eq!(scheduled.await.unwrap(), Scheduled::New);
    assert_eq!(next().await.as_deref(), Some("told"));
}
