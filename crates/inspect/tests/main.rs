//! The program that looks at timers, in a file and on a server.

#[path = "../../durable/tests/common/certified.rs"]
mod certified;
#[path = "../../durable/tests/common/server.rs"]
mod server;

use certified::demand_tls;
use server::{Server, connect};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::store::postgres::tables;
use tickwheel_durable::{Durable, DurableBuilder, Entry, OpenStore, Outcome, Search};
use tokio_postgres::Client;

/// Starts a node which has one timer that waits, and one that has died.
async fn start<O: OpenStore>(node: DurableBuilder<O>) -> Durable<O::Store> {
    let timer = Timer::builder().start().unwrap();
    let handler = |_| async { Outcome::Dead("no\ngood".to_owned()) };
    let node = node.start(&timer, handler).await.unwrap();
    node.schedule(Entry::keyed("later", Duration::from_secs(3_600), "x").tag("some"))
        .await
        .unwrap();
    node.schedule(Entry::keyed("bad", Duration::ZERO, "x"))
        .await
        .unwrap();
    have_died(&node, 1).await;
    node
}

async fn have_died<S: tickwheel_durable::store::Store>(node: &Durable<S>, timers: u64) {
    while node.stats().dead < timers {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Runs the program, and looks whether it says all of this; where it fails, as an error.
fn inspect(target: &str, more: &[&str], succeeds: bool, says: &[&str]) {
    let mut inspect = Command::new(env!("CARGO_BIN_EXE_tickwheel-inspect"));
    let output = inspect.arg(target).args(more).output().unwrap();
    let told = if succeeds {
        &output.stdout
    } else {
        &output.stderr
    };
    let told = String::from_utf8(told.clone()).unwrap();
    assert_eq!(
        output.status.success(),
        succeeds,
        "{more:?}: {told}, {output:?}"
    );
    says.iter()
        .for_each(|says| assert!(told.contains(says), "{more:?}: {says:?} in {told}"));
}

/// What is told of the timers that each node has.
const TOLD: &[&str] = &["later", "some", "in 35", "bad", "no\u{fffd}good"];

#[tokio::test]
async fn a_file_is_looked_at_while_no_node_has_it_and_no_timer_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("timers");
    let target = path.to_str().unwrap();
    inspect(target, &[], false, &["no such file"]);
    let node = start(Durable::sqlite(&path)).await;
    node.pause(Some("late"), Duration::from_secs(3_599))
        .await
        .unwrap();
    let id = node.dead(Search::new(1)).await.unwrap()[0].id.to_string();
    inspect(target, &[], false, &["another process has the file open"]);
    // What a crash would leave.
    let crashed = folder.path().join("crashed");
    for end in ["", "-wal"] {
        let of = |path: &Path| format!("{}{end}", path.display());
        fs::copy(of(&path), of(&crashed)).unwrap();
    }
    let target = crashed.to_str().unwrap();
    inspect(target, &[], true, TOLD);
    inspect(target, &[], true, &["paused: tag late, for 35"]);
    let listed: [(&[&str], [&str; 2]); 3] = [
        (&["--tag", "some"], ["later", "oldest first: 0"]),
        (&["--key-prefix", "ba"], ["due next: 0", "no\u{fffd}good"]),
        (&["--limit", "0"], ["due next: 0", "oldest first: 0"]),
    ];
    for (options, says) in listed {
        inspect(target, options, true, &says);
    }
    let none = "none was requeued";
    inspect(target, &["--requeue", "-1"], false, &[none]);
    inspect(target, &["--requeue-tag", "some"], false, &[none]);
    inspect(target, &["--requeue", &id], true, &["requeued 1"]);
    for _ in 0..2 {
        // It is due, and stays so: nobody runs it.
        inspect(
            target,
            &[],
            true,
            &["bad", " 0 attempts", "oldest first: 0"],
        );
    }
    let file = rusqlite::Connection::open(&crashed).unwrap();
    file.execute_batch("UPDATE tickwheel_version SET version = 5")
        .unwrap();
    drop(file);
    inspect(target, &[], false, &["tables are of version 5"]);
}

async fn a_server_that_demands_tls_is_looked_at(server: &Server, client: &Client) {
    let certificate = demand_tls(server, client).await;
    let port = server.config().get_ports()[0];
    let target = format!("host=127.0.0.1 port={port} user=private dbname=postgres");
    let some = ["--namespace", "some"];
    inspect(&target, &some, false, &["no encryption"]);
    let target = target + " sslmode=require";
    inspect(&target, &some, false, &["certificate"]);
    let mut inspect = Command::new(env!("CARGO_BIN_EXE_tickwheel-inspect"));
    let output = inspect
        .arg(target)
        .args(some)
        .env("SSL_CERT_FILE", certificate)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Has the server ask one role for a password.
async fn a_password_is_read(server: &Server, client: &Client) {
    client
        .batch_execute("CREATE ROLE secret SUPERUSER LOGIN PASSWORD 'word'")
        .await
        .unwrap();
    let rules: String = client.query_one("SHOW hba_file", &[]).await.unwrap().get(0);
    let former = fs::read_to_string(&rules).unwrap();
    fs::write(
        &rules,
        format!("host all secret all scram-sha-256\n{former}"),
    )
    .unwrap();
    client
        .batch_execute("SELECT pg_reload_conf()")
        .await
        .unwrap();
    while connect(server.config().user("secret")).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let port = server.config().get_ports()[0];
    let target = format!("host=127.0.0.1 port={port} user=secret dbname=postgres");
    inspect(&target, &["--namespace", "some"], false, &["password"]);
    let mut inspect = Command::new(env!("CARGO_BIN_EXE_tickwheel-inspect"));
    inspect
        .args([&*target, "--namespace", "some"])
        .env("PGPASSWORD", "word");
    assert!(inspect.output().unwrap().status.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_looked_at_while_nodes_are_there() {
    let server = Server::start(&["fsync=off"]).expect("PostgreSQL is installed");
    let target = format!(
        "host=127.0.0.1 port={} user=postgres",
        server.config().get_ports()[0]
    );
    inspect(&target, &[], false, &["there are no tables of timers"]);
    let named = ["--schema", "a\"b"];
    inspect(&target, &named, false, &["letters, digits and underscores"]);
    let client = connect(&server.config()).await.unwrap();
    inspect(
        &target,
        &["--print-tables"],
        true,
        &[&tables("tickwheel").unwrap()],
    );
    let schema = "SELECT FROM pg_namespace WHERE nspname = 'tickwheel'";
    let made = client.query(schema, &[]).await.unwrap();
    assert!(made.is_empty(), "it was only looked at");
    let node = start(Durable::postgres(server.config()).namespace("some")).await;
    inspect(&target, &[], true, &["due next: 0", "oldest first: 0"]);
    a_server_that_demands_tls_is_looked_at(&server, &client).await;
    a_password_is_read(&server, &client).await;
    let some = &["--namespace", "some"];
    node.pause(None, Duration::from_secs(3_599)).await.unwrap();
    inspect(&target, some, true, &["paused: all, for 35"]);
    node.resume(None).await.unwrap();
    inspect(&target, some, true, TOLD);
    let id = node.dead(Search::new(1)).await.unwrap()[0].id.to_string();
    inspect(
        &target,
        &[some, &["--requeue", &id][..]].concat(),
        true,
        &["requeued 1"],
    );
    have_died(&node, 2).await;
    let id = node.dead(Search::new(1)).await.unwrap()[0].id.to_string();
    node.schedule(Entry::keyed("bad", Duration::from_secs(3_600), "x"))
        .await
        .unwrap();
    let again = [some, &["--requeue", &id][..]].concat();
    inspect(&target, &again, false, &["its key has a timer again"]);
    node.schedule(Entry::unkeyed(Duration::ZERO, "x").tag("more"))
        .await
        .unwrap();
    have_died(&node, 3).await;
    let all = [some, &["--requeue-tag", "more"][..]].concat();
    inspect(&target, &all, true, &["requeued 1"]);
    have_died(&node, 4).await;
    // No program of today knows these.
    let later = "CREATE OR REPLACE FUNCTION tickwheel.version() RETURNS int LANGUAGE sql AS
        'SELECT 1000'";
    client.batch_execute(later).await.unwrap();
    let told = "tables are of version 1000; this crate uses";
    inspect(&target, some, false, &[told]);
}
