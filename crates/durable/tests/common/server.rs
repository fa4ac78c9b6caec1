//! A PostgreSQL server of one's own, in a temporary folder, for as long as one likes.

use std::fs::{Permissions, set_permissions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;
use tokio_postgres::{Client, Config, NoTls};

/// Stopped, and its folder removed, when it is dropped, or its program ends in whatever way.
pub(crate) struct Server {
    folder: TempDir,
    programs: PathBuf,
    port: u16,
    guard: Option<Child>,
}

impl Server {
    /// Makes a cluster and starts it, with these settings besides.
    pub(crate) fn start(settings: &[&str]) -> io::Result<Self> {
        let server = Server::new()?;
        let options = [
            "-U",
            "postgres",
            "-A",
            "trust",
            "--no-sync",
            "-E",
            "UTF8",
            "-D",
        ];
        run(server.command("initdb").args(options).arg(server.data()))?;
        server.go(settings)?;
        Ok(server)
    }

    fn new() -> io::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("tickwheel-postgres-")
            .tempdir()?;
        // Its server refuses to be root's, and then it is the user `postgres`' whose folder it is.
        set_permissions(folder.path(), Permissions::from_mode(0o777))?;
        let mut server = Server {
            folder,
            programs: programs()?,
            port: port(),
            guard: None,
        };
        server.guard = Some(server.guard()?);
        Ok(server)
    }

    /// Makes a copy of a server that follows it by streaming replication.
    #[allow(dead_code, reason = "not each program has a standby")]
    pub(crate) fn standby(of: &Server) -> io::Result<Self> {
        let server = Server::new()?;
        let options = [
            "-U",
            "postgres",
            "-c",
            "fast",
            "--no-sync",
            "-h",
            "127.0.0.1",
            "-p",
        ];
        let mut copy = server.command("pg_basebackup");
        run(copy
            .args(options)
            .arg(of.port.to_string())
            .arg("-D")
            .arg(server.data()))?;
        server.follow(of)?;
        Ok(server)
    }

    /// Starts it as a standby of another one.
    #[allow(dead_code, reason = "not each program has a standby")]
    pub(crate) fn follow(&self, of: &Server) -> io::Result<()> {
        std::fs::write(self.data().join("standby.signal"), "")?;
        self.go(&[&format!(
            "primary_conninfo=postgresql://postgres@127.0.0.1:{}",
            of.port
        )])
    }

    /// Has a standby take writes.
    #[allow(dead_code, reason = "not each program has a standby")]
    pub(crate) fn promote(&self) -> io::Result<()> {
        run(self
            .command("pg_ctl")
            .args(["-w", "promote", "-D"])
            .arg(self.data()))
    }

    /// Starts it again after [`crash`](Self::crash).
    pub(crate) fn go(&self, settings: &[&str]) -> io::Result<()> {
        let folder = self.folder.path().display();
        let mut options = format!("-h 127.0.0.1 -p {} -k {folder}", self.port);
        settings
            .iter()
            .for_each(|setting| options += &format!(" -c {setting}"));
        let mut start = self.command("pg_ctl");
        start.args(["-w", "-t", "120", "-D"]).arg(self.data());
        start
            .arg("-l")
            .arg(self.folder.path().join("log"))
            .args(["-o", &options, "start"]);
        run(&mut start)
    }

    /// Ends it at once, as a crash does.
    #[allow(dead_code, reason = "not each program has a server crash")]
    pub(crate) fn crash(&self) -> io::Result<()> {
        run(&mut self.stop("immediate"))
    }

    /// Ends it once its standbys have all that was written.
    #[allow(dead_code, reason = "not each program has a standby")]
    pub(crate) fn shut_down(&self) -> io::Result<()> {
        run(&mut self.stop("fast"))
    }

    fn stop(&self, mode: &str) -> Command {
        let mut stop = self.command("pg_ctl");
        stop.args(["-m", mode, "stop", "-D"]).arg(self.data());
        stop
    }

    /// Starts what ends the server once this program's end of a pipe is closed: by the system, if
    /// it is killed. In a group of its own, so that no signal to this program's ends it as well.
    fn guard(&self) -> io::Result<Child> {
        let script = "folder=$1; shift; read _; \"$@\"; rm -rf \"$folder\"";
        let stop = self.stop("immediate");
        let mut guard = Command::new("sh");
        guard.args(["-c", script, "sh"]).arg(self.folder.path());
        guard
            .arg(stop.get_program())
            .args(stop.get_args())
            .current_dir("/")
            .process_group(0);
        guard
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
    }

    pub(crate) fn config(&self) -> Config {
        config(self.port)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Returns a program of the server, to be run as a user other than root.
    fn command(&self, program: &str) -> Command {
        let path = self.programs.join(program);
        let mut command = Command::new(&path);
        if rustix::process::geteuid().is_root() {
            command = Command::new("runuser");
            command.args(["-u", "postgres", "--"]).arg(path);
        }
        command.current_dir("/");
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Closes the pipe.
        let _ = self.guard.take().map(|mut guard| guard.wait());
    }
}

/// Draws a free port below those that systems give out: one of these might be another's before it
/// is listened at, or while a server is down.
pub(crate) fn port() -> u16 {
    loop {
        let port = 10_000 + (RandomState::new().hash_one(0_u8) % 20_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Returns the configuration to connect to a private server at a port of this machine, or to a
/// proxy in front of it.
pub(crate) fn config(port: u16) -> Config {
    let mut config = Config::new();
    config
        .host("127.0.0.1")
        .port(port)
        .user("postgres")
        .dbname("postgres");
    config
}

/// Connects to a server.
#[allow(dead_code, reason = "not each program asks the server itself")]
pub(crate) async fn connect(config: &Config) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Returns the directory of `initdb`: from the path, or where Debian puts it.
fn programs() -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let debian = versions.map(|version| version.path().join("bin"));
    // Of a server's own folder: elsewhere there may be some of them.
    let is_whole = |folder: &PathBuf| {
        ["initdb", "pg_basebackup"]
            .iter()
            .all(|program| folder.join(program).exists())
    };
    let found = std::env::split_paths(&path).chain(debian).find(is_whole);
    found.ok_or_else(|| io::Error::other("no initdb: install PostgreSQL (postgresql on Debian)"))
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{command:?}: {errors}"))),
    }
}
