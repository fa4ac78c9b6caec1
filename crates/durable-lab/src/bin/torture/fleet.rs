//! The nodes: processes, each behind a proxy that can delay and swallow.

use crate::node::now;
use crate::server::Server;
use rustix::process::{Pid, Signal, kill_process};
use std::error::Error;
use std::io;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::Duration;
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, watch};
use tokio::task::block_in_place;

pub(crate) struct Fleet {
    nodes: Vec<Node>,
    /// The driver's proxy.
    mood: watch::Sender<Mood>,
    pub(crate) port: u16,
    /// What they all append to.
    pub(crate) ledger: NamedTempFile,
    /// The server's port, which changes as all move to another one.
    pub(crate) server: Arc<AtomicU16>,
    /// When each process ended, or a moment before, by its number in the ledger.
    pub(crate) ends: Vec<i64>,
}

struct Node {
    process: Child,
    number: usize,
    /// Of its proxy, which listens at this port.
    mood: watch::Sender<Mood>,
    port: u16,
}

impl Fleet {
    pub(crate) async fn new(server: &Server) -> Result<Self, Box<dyn Error>> {
        let server = Arc::new(AtomicU16::new(server.config().get_ports()[0]));
        let (port, mood) = proxy(Arc::clone(&server)).await?;
        Ok(Fleet {
            nodes: Vec::new(),
            mood,
            port,
            ledger: NamedTempFile::new()?,
            server,
            ends: Vec::new(),
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) async fn add(&mut self) -> io::Result<()> {
        let (port, mood) = proxy(Arc::clone(&self.server)).await?;
        let (process, number) = self.spawn(port)?;
        self.nodes.push(Node {
            process,
            number,
            mood,
            port,
        });
        Ok(())
    }

    fn spawn(&mut self, port: u16) -> io::Result<(Child, usize)> {
        let number = self.ends.len();
        self.ends.push(i64::MAX);
        // Its input ends when this process does, however that ends: then it drains.
        let process = Command::new(std::env::current_exe()?)
            .args(["node", &port.to_string()])
            .arg(self.ledger.path())
            .arg(number.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok((process, number))
    }

    /// Has the last nodes leave politely, but for so many.
    pub(crate) fn shrink(&mut self, nodes: usize) -> io::Result<()> {
        let mut leaving = self.nodes.split_off(nodes);
        for node in &mut leaving {
            drop(node.process.stdin.take());
        }
        for mut node in leaving {
            block_in_place(|| node.process.wait())?;
            self.ends[node.number] = now();
        }
        Ok(())
    }

    pub(crate) fn kill(&mut self, which: usize) -> io::Result<()> {
        let node = &mut self.nodes[which];
        self.ends[node.number] = now();
        node.process.kill()?;
        node.process.wait().map(drop)
    }

    /// Starts those that have ended, by a fault or by their own handler; returns how many.
    pub(crate) fn revive(&mut self) -> io::Result<usize> {
        let mut ended = 0;
        for which in 0..self.nodes.len() {
            if self.nodes[which].process.try_wait()?.is_none() {
                continue;
            }
            let end = &mut self.ends[self.nodes[which].number];
            *end = now().min(*end);
            let (process, number) = self.spawn(self.nodes[which].port)?;
            self.nodes[which].process = process;
            self.nodes[which].number = number;
            ended += 1;
        }
        Ok(ended)
    }

    pub(crate) fn signal(&self, which: usize, signal: Signal) {
        let pid = Pid::from_child(&self.nodes[which].process);
        let _ = kill_process(pid, signal); // It may have ended.
    }

    /// Sets the mood of a node's proxy, or behind all of them, of the driver's.
    pub(crate) fn set(&self, which: usize, mood: Mood) {
        let proxy = self.nodes.get(which).map_or(&self.mood, |node| &node.mood);
        proxy.send_replace(mood);
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
#[derive(Clone, Copy)]
pub(crate) enum Mood {
    Pass,
    /// Passes each piece on 100 ms later.
    Delay,
    /// Takes everything and passes nothing on; connections stay open. What was swallowed is gone.
    Swallow,
    /// The same, only of what comes from the server.
    LoseAnswers,
    /// Passes on [`RATE`] bytes a second, each way, of all connections together.
    Slow,
}

const RATE: f64 = 100_000.0;

/// Starts a proxy in front of a port; returns its own port, and what sets its mood.
async fn proxy(to: Arc<AtomicU16>) -> io::Result<(u16, watch::Sender<Mood>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let (set, mood) = watch::channel(Mood::Pass);
    let ways = [Way::default(), Way::default()];
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            // While the server is down, the connection is dropped: as if refused.
            if let Ok(far) = TcpStream::connect(("127.0.0.1", to.load(Relaxed))).await {
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                let near = near.into_split();
                let far = far.into_split();
                let [there, back] = ways.clone();
                tokio::spawn(pump(near.0, far.1, mood.clone(), there, false));
                tokio::spawn(pump(far.0, near.1, mood.clone(), back, true));
            }
        }
    });
    Ok((port, set))
}

/// Who passes something on over a slow link, one after the other.
type Way = Arc<Mutex<()>>;

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mood: watch::Receiver<Mood>,
    way: Way,
    answers: bool,
) {
    let mut buffer = vec![0; 64 * 1024];
    let mut swallowed = false;
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let mood = *mood.borrow();
        match mood {
            Mood::Pass => {}
            Mood::Delay => tokio::time::sleep(Duration::from_millis(100)).await,
            Mood::Swallow => swallowed = true,
            Mood::LoseAnswers => swallowed |= answers,
            Mood::Slow => {
                let _turn = way.lock().await;
                tokio::time::sleep(Duration::from_secs_f64(length as f64 / RATE)).await;
            }
        }
        // A stream with a hole in it is no stream: nothing more goes through.
        if !swallowed && to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
