//! The program itself, in a process of its own, under attack: whether others are served meanwhile,
//! and what it takes of memory and of the processors.

use crate::client::{Client, MIB, batch};
use crate::fixture::eventually;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub(crate) struct Process {
    child: Child,
    pub(crate) address: SocketAddr,
    log: PathBuf,
}

impl Process {
    pub(crate) fn start(name: &str, arguments: &[&str]) -> Self {
        raise_file_limit();
        let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.log"));
        let mut child = Command::new(env!("CARGO_BIN_EXE_tickwheel-broker"))
            .args(["serve", "--listen=127.0.0.1:0", "--http=127.0.0.1:0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(File::create(&log).expect("a log"))
            .spawn()
            .expect("the program");
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("its output");
        BufReader::new(stdout).read_line(&mut line).expect("where it listens");
        let word = line.split_whitespace().nth(2).expect("an address").trim_end_matches(',');
        let process = Process { address: word.parse().expect("an address"), child, log };
        // What it needs in any case is not counted.
        assert_eq!(process.client().produce_to("before", batch(1, b"x")), 0);
        process
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Runs an attack. Meanwhile another client is served, and one that comes is served then.
    /// Returns what the attack returns, how many mebibytes it took at its peak, and how many
    /// seconds of a processor.
    pub(crate) fn under<T: Send>(&self, attack: impl FnOnce() -> T + Send) -> (T, usize, f64) {
        let (memory, cpu) = (self.peak_memory(), self.cpu_seconds());
        let mut witness = self.client();
        let result = std::thread::scope(|scope| {
            let attack = scope.spawn(attack);
            while !attack.is_finished() {
                witness.create("before"); // It waits for a minute at most.
                assert_eq!(self.trouble(), None);
                std::thread::sleep(Duration::from_millis(20));
            }
            attack.join().expect("the attack has gone on to its end")
        });
        assert_eq!(witness.produce_to("before", batch(1, b"during")), 0);
        assert_eq!(self.client().produce_to("before", batch(1, b"after")), 0);
        (result, (self.peak_memory() - memory) / MIB, self.cpu_seconds() - cpu)
    }

    /// Waits until it rests, whoever is connected.
    pub(crate) fn wait_until_idle(&self) {
        let window = Duration::from_millis(500);
        let taken = || {
            let before = self.cpu_seconds();
            std::thread::sleep(window);
            self.cpu_seconds() - before
        };
        eventually(|| taken() < 0.05, || format!("{} s of CPU in {window:?}", taken()));
        assert_eq!(self.trouble(), None);
    }

    /// Returns what it has logged of panics and errors, and whether it has ended.
    pub(crate) fn trouble(&self) -> Option<String> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        if stat.is_ok_and(|stat| stat.contains(") Z ")) {
            return Some("it has ended".to_owned());
        }
        let log = fs::read_to_string(&self.log).expect("a log");
        let bad = |line: &&str| line.contains("panicked") || line.contains("ERROR");
        log.lines().find(bad).map(str::to_owned)
    }

    fn peak_memory(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("it runs");
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("its memory");
        let kib = line.split_whitespace().nth(1).expect("a number");
        kib.parse::<usize>().expect("a number") << 10
    }

    /// Returns the processor time so far, of all its threads, in user mode and in the kernel.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it runs");
        // The name, in parentheses, may have blanks in it; utime and stime are the fields 14, 15.
        let (_, fields) = stat.rsplit_once(')').expect("fields");
        let ticks = fields.split_whitespace().skip(11).take(2);
        let ticks: u64 = ticks.map(|field| field.parse::<u64>().expect("a number")).sum();
        ticks as f64 / rustix::param::clock_ticks_per_second() as f64
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill(); // Fails if it has ended already.
        let _ = self.child.wait();
    }
}

fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("more files");
}
