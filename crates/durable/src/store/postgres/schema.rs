//! The tables, from version to version, and the slots of a namespace.

use crate::error::Error;
use crate::store::postgres::link::{Connector, explain};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Transaction};

/// How many slots a namespace has. Never changes: a key's slot follows from its hash.
pub(super) const SLOTS: u32 = 1_024;

/// What brings a database from each version to the next. Never changed once released.
const MIGRATIONS: [&str; 3] = [
    include_str!("migration_1.sql"),
    include_str!("migration_2.sql"),
    include_str!("migration_3.sql"),
];

/// Names the lock under which tables are changed: any number that nobody else uses.
const LOCK: i64 = 0x7469_636b_7768_6565;

/// Brings the tables up to date, and returns the first slot of a namespace, which is made if there
/// is none; `serves` says whether it serves a new one. Where the tables are up to date it asks for
/// no rights to change them.
pub(super) async fn prepare(
    connector: &Connector,
    namespace: &str,
    serves: bool,
) -> Result<u32, Error> {
    let mut client = connector.connect().await?;
    if version(&client).await? != Some(MIGRATIONS.len() as i32) {
        let change = client.transaction().await.map_err(explain)?;
        migrate(&change).await?;
        change.commit().await.map_err(explain)?;
    }
    first_slot(&client, namespace, serves).await
}

/// Returns the version of the tables, if there are any.
async fn version(client: &Client) -> Result<Option<i32>, Error> {
    let sql = "SELECT to_regclass('tickwheel.version') IS NOT NULL";
    let there = client.query_typed(sql, &[]).await.map_err(explain)?;
    if !there.iter().any(|row| row.get(0)) {
        return Ok(None);
    }
    let sql = "SELECT version FROM tickwheel.version";
    let rows = client.query_typed(sql, &[]).await.map_err(explain)?;
    let found = rows.first().map(|row| row.get(0));
    check(found)?;
    Ok(found)
}

fn check(found: Option<i32>) -> Result<usize, Error> {
    let known = MIGRATIONS.len() as i32;
    match found {
        Some(found) if found > known => Err(Error::NewerSchema { found, known }),
        found => Ok(usize::try_from(found.unwrap_or(0)).unwrap_or(0)),
    }
}

/// Migrates the tables. One node does that; the others wait and find it done.
async fn migrate(change: &Transaction<'_>) -> Result<(), Error> {
    let lock = "SELECT pg_advisory_xact_lock($1)";
    change.query_typed(lock, &[(&LOCK, Type::INT8)]).await.map_err(explain)?;
    let base = "CREATE SCHEMA IF NOT EXISTS tickwheel;
        CREATE TABLE IF NOT EXISTS tickwheel.version (version int NOT NULL);";
    change.batch_execute(base).await.map_err(explain)?;
    let sql = "SELECT version FROM tickwheel.version";
    let rows = change.query_typed(sql, &[]).await.map_err(explain)?;
    let found = check(rows.first().map(|row| row.get(0)))?;
    for migration in MIGRATIONS.iter().skip(found) {
        change.batch_execute(migration).await.map_err(explain)?;
    }
    change.batch_execute("DELETE FROM tickwheel.version").await.map_err(explain)?;
    let sql = "INSERT INTO tickwheel.version VALUES ($1)";
    let version = MIGRATIONS.len() as i32;
    change.query_typed(sql, &[(&version, Type::INT4)]).await.map_err(explain)?;
    Ok(())
}

async fn first_slot(client: &Client, namespace: &str, serves: bool) -> Result<u32, Error> {
    let name = [(&namespace as _, Type::TEXT)];
    let made = "INSERT INTO tickwheel.namespace (name) VALUES ($1) ON CONFLICT DO NOTHING";
    client.query_typed(made, &name).await.map_err(explain)?;
    let sql = "SELECT id FROM tickwheel.namespace WHERE name = $1";
    let rows = client.query_typed(sql, &name).await.map_err(explain)?;
    let id: Option<i32> = rows.first().map(|row| row.get(0));
    let id = id.ok_or_else(|| Error::unavailable("the namespace was deleted meanwhile"))?;
    let first = id * SLOTS as i32;
    let made = "INSERT INTO tickwheel.slot (slot, served)
        SELECT $1 + number, CASE WHEN $3 THEN 0 ELSE 2 END 
        FROM generate_series(0, $2 - 1) AS number ON CONFLICT DO NOTHING";
    let params =
        [(&first as _, Type::INT4), (&(SLOTS as i32) as _, Type::INT4), (&serves as _, Type::BOOL)];
    client.query_typed(made, &params).await.map_err(explain)?;
    Ok(first.unsigned_abs())
}
