use crate::happens;
use redis::{Client, RedisResult};
use rustix::process::{Pid, Signal, kill_process};
use std::error::Error;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A `redis-server` on a socket in a folder that goes with it. Killed when it is dropped.
pub struct RedisServer {
    process: Child,
    folder: TempDir,
}

impl RedisServer {
    /// Starts a server that writes nothing to disk unless it is [stopped](Self::stop).
    pub fn start() -> Result<Self, Box<dyn Error>> {
        let folder = tempfile::tempdir()?;
        let server = RedisServer {
            process: spawn(&folder)?,
            folder,
        };
        server.wait_until_ready()?;
        Ok(server)
    }

    pub fn url(&self) -> String {
        format!("redis+unix://{}/redis.sock", self.folder.path().display())
    }

    pub fn client(&self) -> RedisResult<Client> {
        Client::open(self.url())
    }

    /// Sends it a signal: stopped by that it hangs, as seen from outside.
    pub fn signal(&self, signal: Signal) -> Result<(), Box<dyn Error>> {
        Ok(kill_process(Pid::from_child(&self.process), signal)?)
    }

    /// Stops it, as an operator does: what it knows lies on disk, for [`restart`](Self::restart).
    pub fn stop(&mut self) -> Result<(), Box<dyn Error>> {
        let mut connection = self.client()?.get_connection()?;
        // It answers by closing the connection.
        let _ = redis::cmd("SHUTDOWN").arg("SAVE").exec(&mut connection);
        if self.process.wait()?.success() {
            Ok(())
        } else {
            Err("it could not save".into())
        }
    }

    /// Kills it if it runs, and starts it again with what the last [`stop`](Self::stop) saved, or
    /// with nothing if it was never stopped.
    pub fn restart(&mut self) -> Result<(), Box<dyn Error>> {
        let _ = self.process.kill(); // It has ended already, or knows too much.
        self.process.wait()?;
        self.process = spawn(&self.folder)?;
        self.wait_until_ready()
    }

    fn wait_until_ready(&self) -> Result<(), Box<dyn Error>> {
        let ping = || redis::cmd("PING").exec(&mut self.client()?.get_connection()?);
        if happens(|| ping().is_ok()) {
            Ok(())
        } else {
            Ok(ping()?)
        }
    }
}

fn spawn(folder: &TempDir) -> Result<Child, String> {
    let mut command = Command::new("redis-server");
    command.args([
        "--port",
        "0",
        "--unixsocket",
        "redis.sock",
        "--save",
        "",
        "--dir",
    ]);
    command.arg(folder.path()).current_dir(folder.path());
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
        .spawn()
        .map_err(|error| format!("redis-server (apt-get install it): {error}"))
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
