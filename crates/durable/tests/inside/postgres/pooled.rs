//! Sessions have the store's settings whatever the server says, and are refused if PgBouncer keeps
//! them from having them.

use super::server::{self, Server, port};
use crate::durable::{Durable, OpenStore};
use crate::entry::{Cancelled, Due, Entry, Error, Outcome, Scheduled, Search, Touched};
use crate::store::Operations;
use crate::store::postgres::Postgres;
use crate::store::postgres::link::Ask;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tickwheel::Timer;
use tokio_postgres::Config;

const HOUR: Duration = Duration::from_secs(3_600);

const BOUNCER: &str = "/usr/sbin/pgbouncer";

/// PgBouncer before a server, with two connections for all; ended when it is dropped.
struct Pool {
    process: Child,
    config: Config,
    _folder: tempfile::TempDir,
}

impl Pool {
    fn start(server: &Server, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let permissions = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(folder.path(), permissions).unwrap();
        let port = port();
        let settings = folder.path().join("settings");
        let users = folder.path().join("users");
        std::fs::write(&users, "\"postgres\" \"\"\n").unwrap();
        let text = format!(
            "[databases]\npostgres = host=127.0.0.1 port={}\n[pgbouncer]\n\
            listen_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = trust\n\
            auth_file = {}\nunix_socket_dir =\npool_mode = transaction\n\
            default_pool_size = 2\n{more}\n",
            server.config().get_ports()[0],
            users.display(),
        );
        std::fs::write(&settings, text).unwrap();
        let mut command = Command::new(BOUNCER);
        if rustix::process::geteuid().is_root() {
            command = Command::new("runuser");
            command.args(["-u", "postgres", "--", BOUNCER]);
        }
        let process = command.arg(settings).stderr(Stdio::null()).spawn().unwrap();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::sleep(Duration::from_millis(20));
        }
        Pool {
            process,
            config: server::config(port),
            _folder: folder,
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // As `runuser` passes on: a kill would reach it alone.
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.process.wait();
    }
}

/// Starts a pool that refuses the settings, and one that leaves them out.
fn pools(server: &Server) -> Vec<Pool> {
    if !std::path::Path::new(BOUNCER).exists() {
        return Vec::new();
    }
    ["", "ignore_startup_parameters = options"]
        .map(|more| Pool::start(server, more))
        .into()
}

async fn open(config: Config) -> Result<Postgres, Error> {
    let server = Durable::postgres(config).store;
    server.open(Duration::from_secs(5)).await
}

async fn settings(store: &Postgres) -> [String; 2] {
    let sql = "SELECT current_setting('transaction_isolation'),
        current_setting('synchronous_commit') WHERE pg_current_xact_id() IS NOT NULL";
    let rows = store.write().ask(sql, &[]).await.unwrap();
    [rows[0].get(0), rows[0].get(1)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_hold_and_timers_fire() {
    let bad = [
        "fsync=off",
        "default_transaction_isolation=serializable",
        "synchronous_commit=off",
    ];
    let server = Server::start(&bad).unwrap();
    for pool in pools(&server) {
        let refused = open(pool.config.clone()).await.unwrap_err();
        assert!(matches!(refused, Error::Unavailable(_)), "{refused}");
        assert!(refused.to_string().contains("ALTER ROLE"), "{refused}");
    }
    let store = open(server.config()).await.unwrap();
    assert_eq!(settings(&store).await, ["read committed", "on"]);
    let client = server::connect(&server.config()).await.unwrap();
    let sql = "ALTER ROLE postgres SET default_transaction_isolation = 'read committed';
        ALTER ROLE postgres SET synchronous_commit = 'on'";
    client.batch_execute(sql).await.unwrap();
    let pools = pools(&server);
    let mut configs = vec![server.config()];
    configs.extend(pools.iter().map(|pool| pool.config.clone()));
    for config in configs {
        let store = open(config.clone()).await.unwrap();
        assert_eq!(settings(&store).await, ["read committed", "on"]);
        assert!(store.look().await.is_ok());
        let timer = Timer::builder().start().unwrap();
        let node = Durable::postgres(config).lease(Duration::from_secs(60));
        let handler = async |due: Due| match due.attempt {
            1 => Outcome::RetryAt(Duration::ZERO.into(), String::new()),
            _ => Outcome::Done,
        };
        let node = node.start(&timer, handler).await.unwrap();
        node.schedule(Entry::keyed("far", HOUR, "x")).await.unwrap();
        assert_eq!(node.touch("far", HOUR * 2).await.unwrap(), Touched::Moved);
        let cancelled = node.cancel("far").await.unwrap();
        assert_eq!(cancelled, Cancelled::Cancelled(b"x".to_vec()));
        let entries = (0..300).map(|n| Entry::keyed(format!("{n}"), Duration::from_millis(n), "x"));
        node.schedule_many(entries.collect()).await.unwrap();
        let fired = async {
            while node.stats().done < 300 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), fired)
            .await
            .expect("all fire");
        assert_eq!((node.stats().retried, node.stats().errors), (300, 0));
        assert!(node.list(Search::new(1)).await.unwrap().is_empty());
        node.drain().await;
    }
}

/// PgBouncer mixes up statements that are sent before the answer to an earlier one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_statements_of_many_callers_are_not_mixed_up() {
    let server = Server::start(&["fsync=off"]).unwrap();
    for pool in pools(&server) {
        let timer = Timer::builder().start().unwrap();
        let mut calls = tokio::task::JoinSet::new();
        for number in 0..3 {
            let node = Durable::postgres(pool.config.clone());
            let node = node.start(&timer, async |_| Outcome::Done).await.unwrap();
            for caller in 0..20 {
                calls.spawn(call(node.clone(), 20 * number + caller));
            }
        }
        while let Some(called) = calls.join_next().await {
            called.unwrap();
        }
    }
}

async fn call(node: Durable<Postgres>, caller: usize) {
    for round in 0..50 {
        let key = format!("{caller} {round}");
        let payload = key.repeat(5_000);
        let entry = Entry::keyed(&key, HOUR, payload.clone());
        assert_eq!(node.schedule(entry).await.unwrap(), Scheduled::New);
        let found = node.get(&key).await.unwrap().unwrap();
        assert_eq!(found.key, Some(key.clone()));
        let cancelled = node.cancel(&key).await.unwrap();
        assert_eq!(cancelled, Cancelled::Cancelled(payload.into()));
    }
}

/// The server's process ends after the commit and before its answer. PgBouncer tells of it by an
/// error with a code.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_uncertain_behind_a_pooler_too() {
    let server = Server::start(&["fsync=off"]).unwrap();
    let client = server::connect(&server.config()).await.unwrap();
    let set = async |sql| {
        client.batch_execute(sql).await.unwrap();
        let reload = "SELECT pg_reload_conf()";
        client.batch_execute(reload).await.unwrap();
    };
    let pools = pools(&server);
    let pooled = pools.iter().map(|pool| pool.config.clone());
    for (number, config) in std::iter::once(server.config()).chain(pooled).enumerate() {
        let timer = Timer::builder().start().unwrap();
        let node = Durable::postgres(config).max_in_flight(0);
        let node = node.start(&timer, async |_| Outcome::Done).await.unwrap();
        set("ALTER SYSTEM SET synchronous_standby_names = 'nobody'").await;
        let key = number.to_string();
        let ended = async {
            // A commit that was begun before the setting was read is answered at once.
            let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE wait_event = 'SyncRep'";
            while client.query(sql, &[]).await.unwrap().is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let schedule = async {
            let mut answer = Ok(Scheduled::New);
            while answer.is_ok() {
                answer = node.schedule(Entry::keyed(&key, HOUR, "x")).await;
            }
            answer
        };
        let (answer, ()) = tokio::join!(schedule, ended);
        assert!(
            matches!(answer, Err(Error::Uncertain(_))),
            "{number}: {answer:?}"
        );
        set("ALTER SYSTEM RESET synchronous_standby_names").await;
        assert!(node.get(&key).await.unwrap().is_some());
    }
}
