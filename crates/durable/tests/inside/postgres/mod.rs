//! The store on a server of its own, whose clock the test sets.

#[path = "../../common/server.rs"]
mod server;

mod plans;
mod pooled;
mod races;
mod tables;

use self::server::{Server, connect};
use crate::durable::{Durable, OpenStore};
use crate::store::Name;
use crate::store::conformance::beside::beside_the_model;
use crate::store::conformance::{Bench, Locks, groups, locked, seeds, table};
use crate::store::postgres::Postgres;
use crate::sync::{Mutex, lock};
use crate::when::micros;
use std::time::Duration;
use tokio_postgres::Client;

/// A clock that says what a table says; a session of this name waits before it looks.
const CLOCK: &str = "CREATE TABLE public.clock AS SELECT 1750000000000000 AS now;
    CREATE OR REPLACE FUNCTION tickwheel.clock() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
    BEGIN
        IF current_setting('application_name') = 'stalled' THEN
            PERFORM pg_advisory_lock_shared(7);
            PERFORM pg_advisory_unlock_shared(7);
        END IF;
        RETURN (SELECT now FROM public.clock);
    END $$";

/// A server whose clock the test sets.
struct Set {
    server: Server,
    client: Client,
    /// In whose transactions rows are locked.
    locker: Client,
    postgres: Postgres,
    passed: Mutex<Duration>,
}

async fn open(server: &Server, application: &str) -> Postgres {
    let mut config = server.config();
    config.application_name(application);
    Durable::postgres(config)
        .store
        .open(Duration::from_secs(5))
        .await
        .unwrap()
}

impl Set {
    async fn start() -> Self {
        let server = Server::start(&["fsync=off"]).unwrap();
        let postgres = open(&server, "node").await;
        let client = connect(&server.config()).await.unwrap();
        client.batch_execute(CLOCK).await.unwrap();
        let locker = connect(&server.config()).await.unwrap();
        Set {
            server,
            client,
            locker,
            postgres,
            passed: Mutex::default(),
        }
    }

    async fn begin_anew(&self) {
        self.clear().await;
        *lock(&self.passed) = Duration::ZERO;
        self.pass(Duration::ZERO).await;
    }
}

impl Bench for Set {
    type Store = Postgres;

    fn store(&self) -> &Postgres {
        &self.postgres
    }

    async fn pass(&self, time: Duration) {
        *lock(&self.passed) += time;
        let now = 1_750_000_000_000_000 + micros(*lock(&self.passed));
        let sql = "UPDATE public.clock SET now = $1";
        self.client.execute(sql, &[&now]).await.unwrap();
    }

    async fn clear(&self) {
        let sql = "DELETE FROM tickwheel.timer; DELETE FROM tickwheel.pause";
        self.client.batch_execute(sql).await.unwrap();
        // The model begins with a whole microsecond.
        let mut passed = lock(&self.passed);
        *passed = Duration::from_micros(passed.as_micros() as u64);
    }

    async fn state(&self, name: &Name) -> &'static str {
        let sql = "SELECT claim > 0, cancelled, next_id IS NOT NULL, next IS NOT NULL
            FROM tickwheel.timer WHERE name = $1";
        let rows = self.client.query(sql, &[&name.0]).await.unwrap();
        let Some(row) = rows.first() else {
            return "none";
        };
        let [claimed, cancelled, again, waits] = [0, 1, 2, 3].map(|index| row.get(index));
        match (claimed, cancelled, again, waits) {
            (true, _, true, true) => "claimed, next",
            (true, _, true, false) => "claimed, replaced",
            (true, true, ..) => "claimed, marked",
            (true, false, ..) => "claimed",
            (false, true, ..) => "free, marked",
            (false, false, ..) => "free",
        }
    }
}

impl Locks for Set {
    async fn lock(&self, name: &Name) {
        self.locker.batch_execute("BEGIN").await.unwrap();
        let sql = "SELECT FROM tickwheel.timer WHERE name = $1 FOR UPDATE";
        let rows = self.locker.query(sql, &[&name.0]).await.unwrap();
        assert_eq!(rows.len(), 1);
    }

    async fn unlock(&self) {
        self.locker.batch_execute("ROLLBACK").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_cell_of_the_table_holds() {
    let set = Set::start().await;
    table(&set).await;
    groups(&set).await;
    locked(&set).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_does_what_the_plain_model_does() {
    let set = Set::start().await;
    for seed in seeds(10) {
        beside_the_model(&set, seed, 150).await;
    }
}
