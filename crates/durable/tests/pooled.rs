//! PostgreSQL behind PgBouncer in transaction mode, and by a connector of the user's own.

#[path = "common/server.rs"]
mod server;

use server::Server;
use std::future::Future;
use std::io;
use std::net::TcpStream;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::store::{NodeId, Store};
use tickwheel_durable::{
    Cancelled, Due, Durable, DurableBuilder, Entry, OpenStore, Outcome, StoreTime,
};
use tokio::sync::mpsc::unbounded_channel;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{MakeTlsConnect, NoTlsStream, TlsConnect};
use tokio_postgres::{Config, Socket};

/// PgBouncer before a server, with two connections for all; ended when it is dropped.
struct Pool {
    process: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Pool {
    fn start(server: &Server) -> io::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("tickwheel-pool-")
            .tempdir()?;
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(folder.path(), permissions)?;
        let port = server::port();
        let (settings, users) = (folder.path().join("settings"), folder.path().join("users"));
        std::fs::write(&users, "\"postgres\" \"\"\n")?;
        let text = format!(
            "[databases]\npostgres = host=127.0.0.1 port={}\n[pgbouncer]\n\
            listen_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = trust\n\
            auth_file = {}\nunix_socket_dir =\npool_mode = transaction\n\
            default_pool_size = 2\n",
            server.config().get_ports()[0],
            users.display(),
        );
        std::fs::write(&settings, text)?;
        let mut command = match rustix::process::geteuid().is_root() {
            true => {
                let mut command = Command::new("runuser");
                command.args(["-u", "postgres", "--", "/usr/sbin/pgbouncer"]);
                command
            }
            false => Command::new("/usr/sbin/pgbouncer"),
        };
        let process = command.arg(settings).stderr(Stdio::null()).spawn()?;
        let pool = Pool {
            process,
            port,
            _folder: folder,
        };
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(pool)
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

/// Takes timers through a whole life: scheduled in a batch and alone, moved, cancelled, fired,
/// given up.
async fn lives<O: OpenStore>(builder: DurableBuilder<O>) {
    let timer = Timer::builder().start().unwrap();
    let (sender, mut fired) = unbounded_channel();
    let handler = move |due: Due| {
        let _ = sender.send(due.key.clone().unwrap_or_default());
        async move {
            match due.attempt {
                1 => Outcome::RetryAt(Duration::ZERO.into(), String::new()),
                _ => Outcome::Done,
            }
        }
    };
    // So that no renewal is late on a busy machine, which would count as an error.
    let node = builder
        .lease(Duration::from_secs(60))
        .start(&timer, handler)
        .await
        .unwrap();
    let entries = (0..300).map(|n| Entry::keyed(format!("{n}"), Duration::from_millis(n), "x"));
    node.schedule_many(entries.collect()).await.unwrap();
    node.schedule(Entry::keyed("far", Duration::from_secs(3_600), "y"))
        .await
        .unwrap();
    node.touch("far", Duration::from_secs(7_200)).await.unwrap();
    assert_eq!(
        node.cancel("far").await.unwrap(),
        Cancelled::Cancelled(b"y".to_vec())
    );
    for _ in 0..600 {
        // A bound that only a bug breaks.
        let next = tokio::time::timeout(Duration::from_secs(60), fired.recv()).await;
        next.expect("it fires").expect("the node is there");
    }
    node.drain().await;
    assert_eq!((node.stats().done, node.stats().errors), (300, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn pgbouncer_in_transaction_mode_will_do() {
    if !std::path::Path::new("/usr/sbin/pgbouncer").exists() {
        assert!(
            std::env::var_os("CI").is_none(),
            "PgBouncer is not installed"
        );
        eprintln!("PgBouncer is not installed: not tested");
        return;
    }
    let server = Server::start(&["fsync=off"]).expect("PostgreSQL is installed");
    let pool = Pool::start(&server).unwrap();
    let mut config = Config::new();
    config
        .host("127.0.0.1")
        .port(pool.port)
        .user("postgres")
        .dbname("postgres");
    lives(Durable::postgres(config.clone())).await;
    // It passes no notice, and a node that rests knows.
    let store = Durable::postgres(config).store().open().await.unwrap();
    assert!(!store.rest(NodeId(7), StoreTime::MAX).await.unwrap());
    store.leave(NodeId(7)).await.unwrap();
}

/// Counts how often it is asked to encrypt a connection; it cannot.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl MakeTlsConnect<Socket> for Counting {
    type Stream = NoTlsStream;
    type TlsConnect = Counting;
    type Error = io::Error;

    fn make_tls_connect(&mut self, _: &str) -> Result<Counting, io::Error> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(self.clone())
    }
}

impl TlsConnect<Socket> for Counting {
    type Stream = NoTlsStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<NoTlsStream, io::Error>> + Send>>;

    fn connect(self, _: Socket) -> Self::Future {
        Box::pin(async { Err(io::Error::other("no key")) })
    }
}

/// Of a server without keys: every connection is offered to the connector, and where encryption is
/// required none goes on without it.
#[tokio::test(flavor = "multi_thread")]
async fn each_connection_is_made_by_the_users_connector() {
    let server = Server::start(&["fsync=off"]).expect("PostgreSQL is installed");
    let connector = Counting::default();
    let mut config = server.config();
    config.ssl_mode(SslMode::Prefer);
    lives(Durable::postgres(config.clone()).tls(connector.clone())).await;
    assert!(
        connector.0.load(Ordering::Relaxed) >= 6,
        "one for each connection"
    );
    config.ssl_mode(SslMode::Require);
    let refused = Durable::postgres(config)
        .tls(connector)
        .store()
        .open()
        .await;
    assert!(refused.is_err(), "in the clear");
}
