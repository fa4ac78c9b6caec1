//! The program, in a process of its own.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Killed when it is dropped.
pub(crate) struct Server {
    pub(crate) port: u16,
    child: Child,
}

impl Server {
    /// Starts the program that was built with this one.
    pub(crate) fn start() -> Result<Self, Box<dyn Error>> {
        let ours = std::env::current_exe()?;
        let folder = ours.parent().and_then(|examples| examples.parent()).ok_or("no folder")?;
        let mut command = Command::new(folder.join("ttlstore"));
        let mut child = command.args(["--port", "0"]).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no log")?).read_line(&mut line)?;
        let port = line.trim().rsplit(':').next().ok_or("no port")?.parse()?;
        Ok(Server { port, child })
    }

    pub(crate) fn peak_bytes(&self) -> Result<u64, Box<dyn Error>> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no size")?;
        Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()? * 1024)
    }

    pub(crate) fn late_p99(&self) -> Result<Duration, Box<dyn Error>> {
        let mut client = redis::Client::open(("127.0.0.1", self.port))?.get_connection()?;
        let info: String = redis::cmd("INFO").arg("timer").query(&mut client)?;
        let is_wanted = |line: &str| line.strip_prefix("timer_late_us_p99:").map(str::to_owned);
        let us = info.lines().find_map(is_wanted).ok_or("no lateness")?;
        Ok(Duration::from_micros(us.trim().parse()?))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
