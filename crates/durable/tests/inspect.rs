//! The program that looks at timers, in a file and on a server.

#[path = "common/server.rs"]
mod server;

use rustix::process::{Pid, Signal, kill_process};
use server::{Server, connect};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel_durable::store::postgres::migration;
use tickwheel_durable::{Durable, DurableBuilder, Entry, OpenStore, Outcome, Search};
use tokio_postgres::Client;

/// Starts a node which has one timer that waits, and one that has died.
async fn start<O: OpenStore>(node: DurableBuilder<O>) -> Durable<O::Store> {
    let timer = Timer::builder().start().unwrap();
    let handler = |_| async { Outcome::Dead("no good".to_owned()) };
    let node = node.start(&timer, handler).await.unwrap();
    node.schedule(Entry::keyed("later", Duration::from_secs(60), "x").tag("some"))
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
    let mut inspect = Command::new(env!("CARGO_BIN_EXE_inspect"));
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
const TOLD: &[&str] = &["later", "some", "in 5", " 1 ####", "bad", "no good"];

/// Seen to fail, with a file that was opened as a node does: it was changed; and to end well where
/// nothing was requeued.
#[tokio::test]
async fn a_file_is_looked_at_while_no_node_has_it_and_is_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("timers");
    let target = path.to_str().unwrap();
    inspect(target, &[], false, &["no such file"]);
    let node = start(Durable::sqlite(&path)).await;
    node.pause(Some("late"), Duration::from_secs(59))
        .await
        .unwrap();
    inspect(
        target,
        &[],
        false,
        &["another process has the file open", "`node.list`"],
    );
    // What a crash would leave.
    let crashed = folder.path().join("crashed");
    for end in ["", "-wal"] {
        let of = |path: &Path| format!("{}{end}", path.display());
        fs::copy(of(&path), of(&crashed)).unwrap();
    }
    let (before, target) = (fs::read(&crashed).unwrap(), crashed.to_str().unwrap());
    inspect(target, &[], true, TOLD);
    inspect(target, &[], true, &["paused: tag late, for 5"]);
    inspect(
        target,
        &["--tag", "some"],
        true,
        &["later", "oldest first: none"],
    );
    inspect(
        target,
        &["--key-prefix", "ba"],
        true,
        &["due next: nothing", "no good"],
    );
    inspect(target, &["--since", "3600"], true, &["later", "no good"]);
    inspect(
        target,
        &["--since", "0"],
        true,
        &["later", "oldest first: none"],
    );
    inspect(target, &["--running"], true, &["due next: nothing"]);
    inspect(target, &["--within", "3600"], true, &["later"]);
    inspect(target, &["--within", "0"], true, &["due next: nothing"]);
    inspect(
        target,
        &["--limit", "0"],
        true,
        &["due next: nothing", "oldest first: none"],
    );
    assert!(
        fs::read(&crashed).unwrap() == before,
        "it was only looked at"
    );
    let id = node.dead(Search::new(1)).await.unwrap()[0].id.to_string();
    inspect(
        target,
        &["--requeue", "-1"],
        false,
        &["there is no such dead timer"],
    );
    let none = "none of that tag was requeued";
    inspect(target, &["--requeue-tag", "some"], false, &[none]);
    inspect(target, &["--requeue", &id], true, &["requeued"]);
    inspect(
        target,
        &[],
        true,
        &["handler's hands: 1", "oldest first: none"],
    );
    let older = "PRAGMA user_version = 5";
    rusqlite::Connection::open(&crashed)
        .unwrap()
        .execute_batch(older)
        .unwrap();
    inspect(
        target,
        &[],
        false,
        &["not of version 6", "a node migrates them"],
    );
}

/// Has somebody look who may read the file, and write nothing.
#[tokio::test]
async fn who_may_not_write_beside_a_file_is_told_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let (path, program) = (folder.path().join("timers"), folder.path().join("inspect"));
    drop(Durable::sqlite(&path).store().open().await.unwrap());
    fs::copy(env!("CARGO_BIN_EXE_inspect"), &program).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    let mut inspect = Command::new(if is_root { "setpriv" } else { "env" });
    if is_root {
        inspect.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    }
    let Ok(output) = inspect.arg(&program).arg(&path).output() else {
        assert!(
            std::env::var_os("CI").is_none(),
            "needs setpriv, as it is root's"
        );
        return println!("not tried: needs setpriv, as it is root's");
    };
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && told.contains("to a folder that may be written"),
        "{told}"
    );
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
}

/// Has the server make itself a certificate, and ask one role for TLS.
async fn a_server_that_demands_tls_is_looked_at(server: &Server, client: &Client) {
    let make = "COPY (SELECT) TO PROGRAM 'openssl req -x509 -newkey rsa:2048 -nodes -days 2
        -keyout server.key -out server.crt -subj /CN=server -addext subjectAltName=IP:127.0.0.1
        -addext basicConstraints=critical,CA:FALSE'";
    client
        .batch_execute(&make.replace('\n', " "))
        .await
        .unwrap();
    client
        .batch_execute("CREATE ROLE private SUPERUSER LOGIN")
        .await
        .unwrap();
    let rules: String = client.query_one("SHOW hba_file", &[]).await.unwrap().get(0);
    let former = fs::read_to_string(&rules).unwrap();
    let demand = "hostssl all private all trust\nhost all private all reject\n";
    fs::write(&rules, format!("{demand}{former}")).unwrap();
    client
        .batch_execute("ALTER SYSTEM SET ssl = on")
        .await
        .unwrap();
    client
        .batch_execute("SELECT pg_reload_conf()")
        .await
        .unwrap();
    while connect(server.config().user("private")).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let port = server.config().get_ports()[0];
    let target = format!("host=127.0.0.1 port={port} user=private dbname=postgres");
    let some = ["--namespace", "some"];
    inspect(
        &target,
        &some,
        false,
        &["no encryption", "add sslmode=require"],
    );
    let target = target + " sslmode=require";
    inspect(&target, &some, false, &["certificate"]);
    let certificate = Path::new(&rules).with_file_name("server.crt");
    let mut inspect = Command::new(env!("CARGO_BIN_EXE_inspect"));
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
    let mut inspect = Command::new(env!("CARGO_BIN_EXE_inspect"));
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
    inspect(
        &target,
        &[],
        false,
        &["there are no tables in schema \"tickwheel\""],
    );
    let client = connect(&server.config()).await.unwrap();
    inspect(
        &target,
        &["--print-migration", "0"],
        true,
        &[&migration("tickwheel", 0).unwrap()],
    );
    let node = start(Durable::postgres(server.config()).namespace("some")).await;
    inspect(
        &target,
        &[],
        false,
        &["there is no namespace \"default\"", "but [\"some\"]"],
    );
    a_server_that_demands_tls_is_looked_at(&server, &client).await;
    a_password_is_read(&server, &client).await;
    let some = &["--namespace", "some"];
    node.pause(None, Duration::from_secs(59)).await.unwrap();
    inspect(&target, some, true, &["paused: all, for 5"]);
    node.resume(None).await.unwrap();
    inspect(&target, some, true, &[TOLD, &[" 1024 "]].concat());
    let id = node.dead(Search::new(1)).await.unwrap()[0].id.to_string();
    inspect(
        &target,
        &[some, &["--requeue", &id][..]].concat(),
        true,
        &["requeued"],
    );
    have_died(&node, 2).await;
    let id = node.dead(Search::new(1)).await.unwrap()[0].id.to_string();
    node.schedule(Entry::keyed("bad", Duration::from_secs(60), "x"))
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
    client
        .batch_execute("UPDATE tickwheel.version SET version = 7")
        .await
        .unwrap();
    inspect(
        &target,
        some,
        false,
        &["tables of version 7", "--print-migration 7"],
    );
    // Nothing migrates these.
    client
        .batch_execute("UPDATE tickwheel.version SET version = 3")
        .await
        .unwrap();
    inspect(
        &target,
        some,
        false,
        &["tables are of version 3; this crate uses 8"],
    );
}

const SERVER: &str = "TICKWHEEL_SERVER";

/// Runs in a process that is ended, and has a server.
#[test]
fn child() {
    if std::env::var_os(SERVER).is_none() {
        return;
    }
    let server = Server::start(&["fsync=off"]).expect("PostgreSQL is installed");
    println!("port {}", server.config().get_ports()[0]);
    let _ = std::io::stdin().read_line(&mut String::new()); // Ends with the test.
}

/// Seen to fail: the server went on, and its folder stayed.
#[tokio::test]
async fn a_server_ends_with_its_program_however_that_ends() {
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "child", "--nocapture"])
            .env(SERVER, "");
        let mut child = child
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map(Result::unwrap);
        let port = told
            .find_map(|line| line.split_once("port ")?.1.parse().ok())
            .unwrap();
        let client = connect(&server::config(port)).await.unwrap();
        let data = client.query_one("SHOW data_directory", &[]).await.unwrap();
        let folder = Path::new(data.get::<_, &str>(0))
            .parent()
            .unwrap()
            .to_owned();
        kill_process(Pid::from_child(&child), signal).unwrap();
        child.wait().unwrap();
        let patience = Instant::now() + Duration::from_secs(60);
        while !client.is_closed() || folder.exists() {
            assert!(
                Instant::now() < patience,
                "{signal:?}: {}",
                folder.display()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
