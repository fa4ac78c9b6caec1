//! The server's process, and the time that it takes of the processors.

use crate::Failure;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

/// Ends when it is dropped.
pub(super) struct Process {
    child: Child,
    pub(super) address: SocketAddr,
}

impl Process {
    /// Starts a broker of this program on any free port.
    pub(super) fn start(arguments: &[String]) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", "--listen=127.0.0.1:0", "--http=127.0.0.1:0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.as_mut() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let word = line.split_whitespace().nth(2).ok_or("the server has not started")?;
        let address = word.trim_end_matches(',').parse()?;
        Ok(Process { child, address })
    }

    /// Returns the memory that it has now, in mebibytes.
    pub(super) fn resident_mib(&self) -> Result<u64, Failure> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no memory")?;
        Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse::<u64>()? >> 10)
    }

    /// Returns the seconds of processor time so far, of all its threads, in user mode and in the
    /// kernel.
    pub(super) fn cpu_seconds(&self) -> Result<f64, Failure> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The name, in parentheses, may have blanks in it; utime and stime are the fields 14, 15.
        let (_, fields) = stat.rsplit_once(')').ok_or("no fields")?;
        let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
        let ticks: u64 = ticks.sum::<Result<_, _>>()?;
        Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill(); // Fails if it has ended already.
        let _ = self.child.wait();
    }
}
