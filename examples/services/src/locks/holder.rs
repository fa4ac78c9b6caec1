//! A process that holds locks, and tells what becomes of them.

use crate::locks::server::client;
use crate::locks::{Lock, LockError, Locks};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tickwheel::Timer;

/// What a holder is told on its command line.
#[derive(Clone, Debug, clap::Args)]
pub struct Orders {
    socket: PathBuf,
    name: String,
    locks: u32,
    lease_ms: u64,
}

/// How a holder's locks stand, in a line of JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub held: usize,
    pub calls: u64,
    pub renewed: u64,
    pub failed: u64,
    pub lost: usize,
    pub lost_twice: usize,
    /// How many were given back; `None` before that.
    pub unlocked: Option<usize>,
}

/// The names of the locks that were lost.
#[derive(Default)]
struct Losses {
    names: HashSet<String>,
    twice: usize,
}

/// Runs the holder's main program: it holds its locks until its input ends.
pub fn hold(orders: Orders) -> Result<(), Box<dyn Error>> {
    let Orders { socket, name, locks: count, lease_ms } = orders;
    let lease = Duration::from_millis(lease_ms);
    let timer = Timer::builder().start()?;
    let losses = Arc::new(Mutex::new(Losses::default()));
    let log = Arc::clone(&losses);
    let locks = Locks::new(&timer, &client(socket), lease, move |name| {
        let mut losses = lock(&log);
        if !losses.names.insert(name.to_owned()) {
            losses.twice += 1;
        }
    });
    let take = |number| locks.try_lock(&lock_name(&name, number));
    let taken: Vec<Option<Lock>> = (0..count).map(take).collect::<Result<_, LockError>>()?;
    let taken: Vec<Lock> = taken.into_iter().flatten().collect();

    let (sender, end) = channel::<()>();
    thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        drop(sender);
    });
    let held = || taken.iter().filter(|lock| lock.is_held()).count();
    while end.recv_timeout(lease / 30) == Err(RecvTimeoutError::Timeout) {
        tell(&Report::new(held(), &locks, &losses))?;
    }
    let mut report = Report::new(held(), &locks, &losses);
    let unlocked: Vec<bool> = taken.into_iter().map(Lock::unlock).collect::<Result<_, _>>()?;
    report.unlocked = Some(unlocked.into_iter().filter(|unlocked| *unlocked).count());
    tell(&report)
}

/// Returns the name in Redis of a holder's lock.
pub fn lock_name(holder: &str, number: u32) -> String {
    format!("{holder}:{number}")
}

fn tell(report: &Report) -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(report)?)?;
    Ok(out.flush()?)
}

impl Report {
    fn new(held: usize, locks: &Locks, losses: &Mutex<Losses>) -> Self {
        let (counts, losses) = (locks.counts(), lock(losses));
        Report {
            held,
            calls: counts.calls,
            renewed: counts.renewed,
            failed: counts.failed,
            lost: losses.names.len(),
            lost_twice: losses.twice,
            unlocked: None,
        }
    }
}

/// A holder, seen from outside. Killed when it is dropped.
pub struct Holder {
    process: Child,
    report: Arc<Mutex<Report>>,
    reader: Option<JoinHandle<()>>,
}

impl Holder {
    /// Starts `program`, which calls [`hold`] when its first argument is `hold`.
    pub fn start(
        program: &Path,
        socket: &Path,
        name: &str,
        locks: u32,
        lease: Duration,
    ) -> io::Result<Self> {
        let (locks, lease) = (locks.to_string(), lease.as_millis().to_string());
        let mut command = Command::new(program);
        command.arg("hold").arg(socket).args([name, &locks, &lease]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let report = Arc::new(Mutex::new(Report::default()));
        let sink = Arc::clone(&report);
        let reader = process.stdout.take().map(|out| thread::spawn(move || read(out, &sink)));
        Ok(Holder { process, report, reader })
    }

    /// Returns the process's id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the last report.
    pub fn report(&self) -> Report {
        *lock(&self.report)
    }

    /// Lets it give its locks back and end. Its last report.
    pub fn end(mut self) -> io::Result<Report> {
        drop(self.process.stdin.take());
        let status = self.process.wait()?;
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        let report = self.report();
        let ended = status.success() && report.unlocked.is_some();
        if ended { Ok(report) } else { Err(io::Error::other(format!("a holder ended: {status}"))) }
    }
}

fn read(out: ChildStdout, sink: &Mutex<Report>) {
    for line in BufReader::new(out).lines().map_while(Result::ok) {
        if let Ok(report) = serde_json::from_str(&line) {
            *lock(sink) = report;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
