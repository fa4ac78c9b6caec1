//! The crew: the server and its clients, as processes that can be stopped and killed.

use crate::options::{Options, Role};
use crate::process::Report;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// Who it is that reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Server,
    Client,
}

pub(crate) struct Crew {
    pub(crate) server: Member,
    pub(crate) clients: Vec<Member>,
    pub(crate) reports: Receiver<(Source, Report)>,
}

/// A process, which is killed if it is dropped while it runs.
pub(crate) struct Member(Child);

impl Crew {
    /// Starts the server, and then the clients.
    pub(crate) fn start(options: &Options) -> Result<Self, Box<dyn Error>> {
        allow_files(u64::from(options.connections) + 100)?; // The crew inherits the limit.
        let (sender, reports) = channel();
        let server = Member::start(options, Role::Server, Source::Server, &sender)?;
        let Ok((_, Report::Listening(address))) = reports.recv() else {
            return Err("the server has not come up".into());
        };
        let client = |number| Self::client(options, number, address, &sender);
        let clients = (0..options.clients).map(client).collect::<Result<_, _>>()?;
        Ok(Crew { server, clients, reports })
    }

    fn client(
        options: &Options,
        number: u32,
        server: SocketAddr,
        sender: &Sender<(Source, Report)>,
    ) -> Result<Member, Box<dyn Error>> {
        Member::start(options, Role::Client { number, server }, Source::Client, sender)
    }
}

impl Member {
    fn start(
        options: &Options,
        role: Role,
        source: Source,
        sender: &Sender<(Source, Report)>,
    ) -> Result<Self, Box<dyn Error>> {
        let mut command = Command::new(env::current_exe()?);
        command.args(options.arguments(role)).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let stdout = child.stdout.take().ok_or("no stdout")?;
        let sender = sender.clone();
        thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            // The last line of one that was killed may be torn.
            let reports = lines.filter_map(|line| serde_json::from_str(&line).ok());
            reports.for_each(|report| _ = sender.send((source, report)));
        });
        Ok(Member(child))
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Box<dyn Error>> {
        Ok(kill_process(Pid::from_child(&self.0), signal)?)
    }

    /// Ends its stdin: then it reports what it has left, and ends.
    pub(crate) fn dismiss(&mut self) {
        drop(self.0.stdin.take());
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.0.kill(); // It may have ended already.
        let _ = self.0.wait();
    }
}

/// Raises the limit of open files as far as it is needed.
fn allow_files(files: u64) -> Result<(), Box<dyn Error>> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= files) {
        return Ok(());
    }
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(files), ..limit });
    let advice = format!("say `ulimit -n {files}` first, or ask for fewer --connections");
    raised.map_err(|_| advice.into())
}
