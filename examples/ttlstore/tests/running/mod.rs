//! The program in a process of its own.

#![allow(dead_code)] // Each test uses a part of it.

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

/// Killed when it is dropped, if it has not ended by itself.
pub struct Program {
    child: Child,
    /// The lines of its log, and of what it says of panics.
    log: Receiver<String>,
}

impl Program {
    pub fn start(options: &[&str]) -> Self {
        files(); // It inherits the limit.
        let mut child = Command::new(env!("CARGO_BIN_EXE_ttlstore"))
            .args(["--port", "0", "--stats-port", "0"])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a program that starts");
        // Read at once: a full pipe would stop the program.
        let (sender, log) = mpsc::channel();
        read(child.stdout.take().expect("a pipe"), sender.clone());
        read(child.stderr.take().expect("a pipe"), sender);
        Program { child, log }
    }

    /// Returns the port in the next line of the log that says this.
    pub fn port(&mut self, text: &str) -> u16 {
        let line = self.log.recv().expect("a log");
        let (_, after) = line.split_once(text).unwrap_or_else(|| panic!("{line}"));
        let (_, port) = after.split_once(':').expect("an address");
        port.trim().trim_end_matches("/metrics").parse().expect("a port")
    }

    /// Returns how many bytes of memory it takes now.
    pub fn rss(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// Returns how many bytes of memory it has taken at most.
    pub fn peak(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, name: &str) -> u64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a size");
        let kib = line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number");
        kib * 1024
    }

    /// Returns how long the process has computed, in steps of a hundredth of a second.
    pub fn cpu(&self) -> Duration {
        let stat = self.proc("stat");
        let (_, after) = stat.rsplit_once(')').expect("a name");
        let ticks = after.split(' ').skip(12).take(2).map(|it| it.parse::<u64>().expect("ticks"));
        Duration::from_millis(10 * ticks.sum::<u64>())
    }

    /// Checks that it does nothing while nobody asks. A loop that never sleeps takes more, also
    /// beside other programs.
    pub fn assert_idle(&self) {
        let busy = self.cpu();
        thread::sleep(Duration::from_secs(1));
        let used = self.cpu() - busy;
        assert!(used < Duration::from_millis(100), "idle, it took {used:?} in a second");
    }

    fn proc(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).expect("it runs")
    }

    /// Ends it, and returns the rest of its log.
    pub fn end(mut self, signal: Signal) -> String {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it runs");
        let rest: Vec<String> = self.log.iter().collect();
        let rest = rest.join("\n");
        assert!(self.child.wait().expect("it ends").success(), "{rest}");
        assert!(!rest.contains("panicked at"), "{rest}");
        rest
    }
}

/// Returns how many files a process may have open, after it has asked for as many as it may.
pub fn files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    // What it can't get it does without.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn read(pipe: impl Read + Send + 'static, lines: Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            // Nobody listens any more when the test is over.
            let _ = lines.send(line);
        }
    });
}

impl Drop for Program {
    fn drop(&mut self) {
        // It has ended already, unless its test failed.
        let _ = self.child.kill();
    }
}
