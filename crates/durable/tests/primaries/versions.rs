//! Tables of an earlier version: brought up to date, and back.

use crate::runtime;
use crate::server::{Server, connect};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::{Due, Durable, OpenStore, Outcome};
use tokio::sync::mpsc::unbounded_channel;
use tokio_postgres::Client;

/// A database of version 1, with a timer in it, is brought up to date when a node starts.
#[test]
fn tables_of_version_1_are_migrated() {
    let server = Server::start(&["fsync=off"]).unwrap();
    runtime().block_on(async {
        let client = connect(&server.config()).await.unwrap();
        let base = "CREATE SCHEMA tickwheel;
            CREATE TABLE tickwheel.version (version int NOT NULL);
            INSERT INTO tickwheel.version VALUES (1);";
        client.batch_execute(base).await.unwrap();
        let version_1 = include_str!("../../src/store/postgres/migration_1.sql");
        client.batch_execute(version_1).await.unwrap();
        let content = "INSERT INTO tickwheel.namespace (name) VALUES ('default');
            INSERT INTO tickwheel.slot (slot, epoch)
                SELECT 1024 * id + n, 7 FROM tickwheel.namespace, generate_series(0, 1023) AS n;
            INSERT INTO tickwheel.timer (slot, due, id, key, claim, attempts, payload)
                SELECT 1024 * id + 3, 1, 1, 'old', 7, 1, 'x' FROM tickwheel.namespace;";
        client.batch_execute(content).await.unwrap();
        let timer = Timer::builder().start().unwrap();
        let (sender, mut fired) = unbounded_channel();
        let handler = move |due: Due| {
            let _ = sender.send(due);
            async { Outcome::Done }
        };
        let node = Durable::postgres(server.config()).start(&timer, handler).await.unwrap();
        let due = tokio::time::timeout(Duration::from_secs(60), fired.recv()).await;
        let due = due.expect("it fires").expect("the node is there");
        assert_eq!((due.key.as_deref(), due.attempt), (Some("old"), 2));
        assert_eq!((due.token.partition, due.token.epoch), (3, 8));
        node.drain().await;
        assert_eq!(version(&client).await, 3);
        tables_go_back_to_version_1(&server, &client).await;
    });
}

async fn version(client: &Client) -> i32 {
    let row = client.query_one("SELECT version FROM tickwheel.version", &[]).await;
    row.unwrap().get(0)
}

/// Goes back where no slot has moved, to the tables that version 1 made; and forth again.
async fn tables_go_back_to_version_1(server: &Server, client: &Client) {
    let rollback = include_str!("../../src/store/postgres/rollback_3.sql");
    client.batch_execute(&format!("BEGIN; {rollback} COMMIT;")).await.unwrap();
    assert_eq!(version(client).await, 2);
    let rollback = include_str!("../../src/store/postgres/rollback_2.sql");
    client.batch_execute("UPDATE tickwheel.slot SET served = 2 WHERE slot % 2 = 0").await.unwrap();
    assert!(client.batch_execute(&format!("BEGIN; {rollback} COMMIT;")).await.is_err());
    client.batch_execute("ROLLBACK; UPDATE tickwheel.slot SET served = 0").await.unwrap();
    assert_eq!(version(client).await, 2, "slots had moved");
    client.batch_execute(&format!("BEGIN; {rollback} COMMIT;")).await.unwrap();
    assert_eq!(version(client).await, 1);
    let columns = "SELECT string_agg(table_name || '.' || column_name, ' ' ORDER BY 1)
        FROM (SELECT table_name, column_name FROM information_schema.columns
            WHERE table_schema = 'tickwheel'
            AND (table_name IN ('slot', 'identity') OR column_name = 'crashes')
            ORDER BY table_name, column_name) c";
    let columns: String = client.query_one(columns, &[]).await.unwrap().get(0);
    assert_eq!(columns, "slot.epoch slot.owner slot.slot");
    let opened = Durable::postgres(server.config()).store().open().await;
    opened.unwrap();
    assert_eq!(version(client).await, 3);
}
