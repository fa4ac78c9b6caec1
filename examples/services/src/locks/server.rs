//! A `redis-server` of one's own, on a socket in a folder that goes with it.

use redis::{Client, ConnectionAddr, IntoConnectionInfo};
use std::error::Error;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long it may take to start or stop.
const PATIENCE: Duration = Duration::from_secs(30);

/// Killed when it is dropped.
pub struct RedisServer {
    process: Child,
    folder: TempDir,
}

impl RedisServer {
    /// Starts a server that writes nothing to disk unless it is [restarted](Self::restart).
    pub fn start() -> Result<Self, Box<dyn Error>> {
        let folder = tempfile::tempdir()?;
        let mut server = RedisServer { process: spawn(&folder)?, folder };
        server.wait_until_ready()?;
        Ok(server)
    }

    /// Returns the socket's path.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    pub fn client(&self) -> Client {
        client(self.socket())
    }

    /// Returns the process's id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Stops it, as an operator does: what it knows lies on disk, for [`restart`](Self::restart).
    pub fn stop(&mut self) -> Result<(), Box<dyn Error>> {
        let mut connection = self.client().get_connection()?;
        // It answers by closing the connection.
        let _ = redis::cmd("SHUTDOWN").arg("SAVE").exec(&mut connection);
        if self.process.wait()?.success() { Ok(()) } else { Err("it could not save".into()) }
    }

    /// Kills it: what it knows is lost.
    pub fn crash(&mut self) -> Result<(), Box<dyn Error>> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Starts it again after it was stopped, with what it knew. What has expired meanwhile is gone.
    pub fn restart(&mut self) -> Result<(), Box<dyn Error>> {
        self.process = spawn(&self.folder)?;
        self.wait_until_ready()
    }

    fn wait_until_ready(&mut self) -> Result<(), Box<dyn Error>> {
        let end = Instant::now() + PATIENCE;
        let ping = |client: Client| redis::cmd("PING").exec(&mut client.get_connection()?);
        while let Err(error) = ping(self.client()) {
            if let Some(status) = self.process.try_wait()? {
                return Err(format!("redis-server ended: {status}").into());
            }
            if Instant::now() > end {
                return Err(error.into());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// Creates a client of the server at this socket.
pub fn client(socket: PathBuf) -> Client {
    let info = ConnectionAddr::Unix(socket).into_connection_info();
    Client::open(info.expect("a path is an address")).expect("it does not connect yet")
}

fn spawn(folder: &TempDir) -> Result<Child, Box<dyn Error>> {
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--unixsocket", "redis.sock", "--save", "", "--dir"]);
    command.arg(folder.path()).current_dir(folder.path());
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => "redis-server is missing: apt-get install redis-server".into(),
        _ => error.into(),
    })
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.crash();
    }
}
