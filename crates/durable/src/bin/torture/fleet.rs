//! The nodes: processes behind a proxy each.

use crate::proxy::{Mood, Proxy};
use crate::server::Server;
use rustix::process::{Pid, Signal, kill_process};
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

pub(crate) struct Fleet {
    nodes: Vec<Node>,
    folder: TempDir,
    server: u16,
}

struct Node {
    process: Child,
    proxy: Proxy,
    ledger: PathBuf,
}

impl Node {
    fn spawn(port: u16, ledger: &Path) -> io::Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("node").arg(port.to_string()).arg(ledger);
        // Its input ends when this process does, however that ends: then it drains.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    }
}

impl Fleet {
    pub(crate) async fn start(server: &Server, nodes: usize) -> Result<Self, Box<dyn Error>> {
        let server = server.config().get_ports()[0];
        let mut fleet = Fleet { nodes: Vec::new(), folder: tempfile::tempdir()?, server };
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
        let proxy = Proxy::start(self.server).await?;
        let ledger = self.folder.path().join(format!("ledger {}", proxy.port()));
        let process = Node::spawn(proxy.port(), &ledger)?;
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

    pub(crate) fn kill(&mut self, which: usize) -> io::Result<()> {
        self.nodes[which].process.kill()?;
        self.nodes[which].process.wait().map(drop)
    }

    /// Starts those that have ended, by a fault or by their own handler; returns how many.
    pub(crate) fn revive(&mut self) -> io::Result<usize> {
        let mut ended = 0;
        for node in &mut self.nodes {
            if node.process.try_wait()?.is_some() {
                node.process = Node::spawn(node.proxy.port(), &node.ledger)?;
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
