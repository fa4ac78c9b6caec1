//! Two schemas in one database.

#[path = "../src/bin/support/server.rs"]
mod server;

use server::{Server, connect};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::{Due, Durable, Entry, Error, OpenStore, Outcome, Search, Sharded};
use tokio::sync::mpsc::unbounded_channel;

/// Tells them apart by their acknowledgements, and moves slots from one to the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_schemas_know_nothing_of_each_other() {
    let server = Server::start(&["fsync=off"]).expect("PostgreSQL is installed");
    let name = "some";
    let primary = |schema: &str| {
        let builder = Durable::postgres(server.config()).namespace(name).schema(schema);
        builder.lease(Duration::from_secs(1))
    };
    let odd = primary("a\"b").store().open().await;
    assert!(matches!(odd, Err(Error::BadName(_))));
    let mut client = connect(&server.config()).await.unwrap();
    let (config, mut nodes) = (server.config(), Vec::new());
    for schema in ["tickwheel", "Other"] {
        let (config, timer) = (config.clone(), Timer::builder().start().unwrap());
        let (sender, mut fired) = unbounded_channel();
        let handler = move |due: Due| {
            let (config, sender) = (config.clone(), sender.clone());
            async move {
                let mut client = connect(&config).await.unwrap();
                let transaction = client.transaction().await.unwrap();
                due.ack_in(&transaction).await.unwrap();
                transaction.commit().await.unwrap();
                sender.send(due).unwrap();
                Outcome::Done
            }
        };
        let node = primary(schema).start(&timer, handler).await.unwrap();
        let transaction = client.transaction().await.unwrap();
        let entry = Entry::keyed("a", Duration::ZERO, schema);
        node.schedule_in(&transaction, entry).await.unwrap();
        let sql = format!("SELECT \"{schema}\".schedule($1, 'b', now() + interval '1 day', '')");
        transaction.execute(&sql, &[&name]).await.unwrap();
        transaction.commit().await.unwrap();
        let due = tokio::time::timeout(Duration::from_secs(60), fired.recv()).await;
        assert_eq!(due.unwrap().unwrap().payload, schema.as_bytes());
        nodes.push((node, fired));
        let there = "DELETE FROM \"Other\".timer WHERE key = 'b'";
        assert_eq!(client.execute(there, &[]).await.unwrap_or(0), u64::from(schema == "Other"));
    }
    for (node, mut fired) in nodes {
        node.drain().await;
        assert!(fired.try_recv().is_err(), "the other's");
    }
    let (both, timer) =
        ([primary("tickwheel"), primary("Other")], Timer::builder().start().unwrap());
    let node = Sharded::start(both.map(|it| it.namespace("moved")).into(), &timer, |_| async {
        Outcome::Done
    });
    let (node, day) = (node.await.unwrap(), Duration::from_secs(86_400));
    let keys: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    let entries = keys.iter().map(|key| Entry::keyed(key, day, "x")).collect();
    node.schedule_many(entries).await.unwrap();
    node.move_slots(0..100, 1).await.unwrap();
    for key in &keys {
        assert!(node.get(key).await.unwrap().is_some(), "{key}");
    }
    assert!(!node.nodes()[1].list(Search::new(200)).await.unwrap().is_empty());
}
