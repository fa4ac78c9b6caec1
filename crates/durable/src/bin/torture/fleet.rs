//! The nodes: processes, each behind a proxy that can delay and swallow.

use crate::node::SKEW;
use crate::server::Server;
use rustix::process::{Pid, Signal, kill_process};
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

pub(crate) struct Fleet {
    nodes: Vec<Node>,
    folder: TempDir,
    servers: [u16; 2],
    program: PathBuf,
    movers: u32,
}

/// How long a node is given to join before the next one leaves.
const JOINING: Duration = Duration::from_secs(1);

/// Where Debian's package `faketime` puts the library that shows a process another time.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

struct Node {
    process: Child,
    proxy: Proxy,
    ledger: PathBuf,
}

impl Node {
    fn spawn(program: &Path, ports: [u16; 2], ledger: &Path, skew: i64) -> io::Result<Child> {
        let mut command = Command::new(program);
        command.arg("node").args(ports.map(|port| port.to_string())).arg(ledger);
        if skew != 0 {
            // The time of day only: what counts the passing of time goes on as it does.
            command.env("LD_PRELOAD", FAKETIME).env("FAKETIME", format!("{skew:+}"));
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env(SKEW, skew.to_string());
        }
        // Its input ends when this process does, however that ends: then it drains.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    }
}

impl Fleet {
    pub(crate) async fn start(servers: &[Server; 2], nodes: usize) -> Result<Self, Box<dyn Error>> {
        let servers = servers.each_ref().map(|server| server.config().get_ports()[0]);
        let (folder, program) = (tempfile::tempdir()?, std::env::current_exe()?);
        let mut fleet = Fleet { nodes: Vec::new(), folder, servers, program, movers: 0 };
        for _ in 0..nodes {
            fleet.add().await?;
        }
        Ok(fleet)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) async fn add(&mut self) -> io::Result<()> {
        let proxy = Proxy::start(self.servers[0]).await?;
        let ledger = self.folder.path().join(format!("ledger {}", proxy.port()));
        let process = Node::spawn(&self.program, [proxy.port(), self.servers[1]], &ledger, 0)?;
        self.nodes.push(Node { process, proxy, ledger });
        Ok(())
    }

    /// Has the last node leave politely.
    pub(crate) fn remove(&mut self) -> io::Result<()> {
        if let Some(mut node) = self.nodes.pop() {
            drop(node.process.stdin.take());
            node.process.wait()?;
        }
        Ok(())
    }

    /// Returns whether a process can be shown another time.
    pub(crate) fn can_skew() -> bool {
        Path::new(FAKETIME).exists()
    }

    /// Has a node leave politely, and starts it again: with that program, and a clock that is wrong
    /// by so many seconds.
    pub(crate) fn restart(&mut self, which: usize, program: &Path, skew: i64) -> io::Result<()> {
        let node = &mut self.nodes[which];
        drop(node.process.stdin.take());
        node.process.wait()?;
        let ports = [node.proxy.port(), self.servers[1]];
        node.process = Node::spawn(program, ports, &node.ledger, skew)?;
        Ok(())
    }

    /// Starts a process that moves slots to a primary.
    pub(crate) fn move_slots(&mut self, slots: Range<u32>, target: usize) -> io::Result<Child> {
        self.movers += 1;
        let mut command = Command::new(&self.program);
        command.arg("move").args(self.servers.map(|port| port.to_string()));
        command.arg(self.folder.path().join(format!("ledger of mover {}", self.movers)));
        command.args([slots.start.to_string(), slots.end.to_string(), target.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()
    }

    /// Puts one node after the other on another version's program, and then back.
    pub(crate) fn upgrade(&mut self, other: &Path) -> io::Result<()> {
        let own = self.program.clone();
        for program in [other, &own] {
            for which in 0..self.nodes.len() {
                self.restart(which, program, 0)?;
                std::thread::sleep(JOINING);
            }
        }
        Ok(())
    }

    pub(crate) fn kill(&mut self, which: usize) -> io::Result<()> {
        self.nodes[which].process.kill()?;
        self.nodes[which].process.wait().map(drop)
    }

    /// Starts those that have ended, by a fault or by their own handler; returns how many.
    pub(crate) fn revive(&mut self) -> io::Result<usize> {
        let mut ended = 0;
        for node in &mut self.nodes {
            if node.process.try_wait()?.is_some() {
                let ports = [node.proxy.port(), self.servers[1]];
                node.process = Node::spawn(&self.program, ports, &node.ledger, 0)?;
                ended += 1;
            }
        }
        Ok(ended)
    }

    pub(crate) fn signal(&self, which: usize, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.nodes[which].process.id() as i32) {
            let _ = kill_process(pid, signal); // It may have ended.
        }
    }

    pub(crate) fn set(&self, which: usize, mood: Mood) {
        self.nodes[which].proxy.set(mood);
    }

    pub(crate) fn drain(&mut self) -> io::Result<()> {
        while !self.nodes.is_empty() {
            self.remove()?;
        }
        Ok(())
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = (node.process.kill(), node.process.wait());
        }
    }
}

/// What a proxy does with what it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    Pass = 0,
    /// Passes each piece on 100 ms later.
    Delay = 1,
    /// Takes everything and passes nothing on; connections stay open. What was swallowed is gone.
    Swallow = 2,
    /// Passes on [`RATE`] bytes a second, each way, of all connections together.
    Slow = 3,
}

const RATE: f64 = 100_000.0;

struct Proxy {
    mood: Arc<AtomicU8>,
    port: u16,
}

impl Proxy {
    async fn start(to: u16) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let mood = Arc::new(AtomicU8::new(Mood::Pass as u8));
        let shared = Arc::clone(&mood);
        let ways = [Way::default(), Way::default()];
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let to = SocketAddr::from(([127, 0, 0, 1], to));
                // While the server is down, the connection is dropped: as if refused.
                if let Ok(far) = TcpStream::connect(to).await {
                    let _ = (near.set_nodelay(true), far.set_nodelay(true));
                    let (near, far) = (near.into_split(), far.into_split());
                    let [there, back] = ways.each_ref().map(Arc::clone);
                    tokio::spawn(pump(near.0, far.1, Arc::clone(&shared), there));
                    tokio::spawn(pump(far.0, near.1, Arc::clone(&shared), back));
                }
            }
        });
        Ok(Proxy { mood, port })
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn set(&self, mood: Mood) {
        // Relaxed: a piece more or less makes no difference.
        self.mood.store(mood as u8, Ordering::Relaxed);
    }
}

/// Who passes something on over a slow link, one after the other.
type Way = Arc<Mutex<()>>;

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mood: Arc<AtomicU8>, way: Way) {
    let mut buffer = vec![0; 64 * 1024];
    let mut swallowed = false;
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        match mood.load(Ordering::Relaxed) {
            mood if mood == Mood::Swallow as u8 => swallowed = true,
            mood if mood == Mood::Delay as u8 => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            mood if mood == Mood::Slow as u8 => {
                let _turn = way.lock().await;
                tokio::time::sleep(Duration::from_secs_f64(length as f64 / RATE)).await;
            }
            _ => {}
        }
        // A stream with a hole in it is no stream: nothing more goes through.
        if !swallowed && to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
