//! The scenario: who is stopped and killed when, and what must come of it.

use crate::crew::Crew;
use crate::ledger::{Ledger, Seen};
use crate::options::Options;
use rustix::process::Signal;
use std::error::Error;
use std::time::{Duration, Instant};
use tickwheel_services::heartbeat::Terms;
use tickwheel_services::timeline::Timeline;

/// The client that is stopped, and the one that is killed. All others live.
const STOPPED: u32 = 1;
const KILLED: u32 = 2;

/// So much later than it should, only a bug notices a silence, on however slow a machine.
const LATE: Duration = Duration::from_secs(10);
/// What has not happened by then will not happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Fails if anything is not as it must be.
pub(crate) fn play(options: &Options) -> Result<(), Box<dyn Error>> {
    let mut scenario = Scenario {
        options,
        timeline: Timeline::begin(),
        crew: Crew::start(options)?,
        ledger: Ledger::new(options.connections),
    };
    scenario.open()?;
    scenario.lose_clients()?;
    scenario.lose_server()?;
    scenario.end()?;
    scenario.timeline.say("all as it must be");
    Ok(())
}

struct Scenario<'a> {
    options: &'a Options,
    timeline: Timeline,
    crew: Crew,
    ledger: Ledger,
}

impl Scenario<'_> {
    /// Opens all connections, which stay open by heartbeats.
    fn open(&mut self) -> Result<(), Box<dyn Error>> {
        let Terms { heartbeat, idle_timeout } = self.options.terms();
        let all = self.of(|_| true);
        self.wait_for("open", &all, |ledger, of| ledger.at_server[of].is_open())?;
        let (count, clients) = (all.len(), self.options.clients);
        self.timeline.say(format!(
            "{count} connections of {clients} clients are open, half of them busy; heartbeat \
             {heartbeat:?}, idle timeout {idle_timeout:?}"
        ));
        self.watch(idle_timeout + heartbeat);
        self.require_untouched(&all)?;
        self.timeline.say("all of them are still open");
        Ok(())
    }

    /// Silences one client and kills one: the server has to notice exactly these.
    fn lose_clients(&mut self) -> Result<(), Box<dyn Error>> {
        let (stopped, killed) = (self.of(|of| of == STOPPED), self.of(|of| of == KILLED));
        self.crew.clients[STOPPED as usize].signal(Signal::STOP)?;
        self.crew.clients[KILLED as usize].signal(Signal::KILL)?;
        self.timeline.say(format!("client {STOPPED} is stopped, client {KILLED} is killed"));

        self.wait_for("seen to end", &killed, |ledger, of| ledger.at_server[of].closed == 1)?;
        let count = killed.len();
        self.timeline.say(format!("the server saw {count} connections of client {KILLED} end"));
        self.wait_for("given up", &stopped, |ledger, of| ledger.at_server[of].silences.len() == 1)?;
        self.tell_silences("the server", &self.ledger.at_server)?;

        self.crew.clients[STOPPED as usize].signal(Signal::CONT)?;
        self.timeline.say(format!("client {STOPPED} goes on"));
        self.wait_for("open again", &stopped, |ledger, of| ledger.at_server[of].is_open())?;
        let count = stopped.len();
        self.timeline.say(format!("its {count} connections are open again"));
        self.require_untouched(&self.of(|of| ![STOPPED, KILLED].contains(&of)))?;
        self.timeline.say("nothing has happened to those of the others");
        Ok(())
    }

    /// Silences the server: all clients have to notice, and to come back to it.
    fn lose_server(&mut self) -> Result<(), Box<dyn Error>> {
        let left = self.of(|of| of != KILLED);
        self.crew.server.signal(Signal::STOP)?;
        self.timeline.say("the server is stopped");
        self.wait_for("given up", &left, |ledger, of| !ledger.at_client[of].silences.is_empty())?;
        self.tell_silences("the clients", &self.ledger.at_client)?;

        self.crew.server.signal(Signal::CONT)?;
        self.timeline.say("the server goes on");
        let is_open = |ledger: &Ledger, of: usize| {
            ledger.at_server[of].is_open() && ledger.at_client[of].is_open()
        };
        self.wait_for("open again", &left, is_open)?;
        self.timeline.say(format!("{} connections are open again", left.len()));
        Ok(())
    }

    /// Ends all processes, after which nothing of the connections is left in a timer.
    fn end(&mut self) -> Result<(), Box<dyn Error>> {
        let all = self.of(|_| true);
        self.crew.clients.iter_mut().for_each(|client| client.dismiss());
        self.wait_for("ended", &all, |ledger, of| ledger.at_server[of].has_ended())?;
        self.crew.server.dismiss();
        let living = self.options.clients as usize; // The clients but one, and the server.
        self.wait_for("forgotten", &all, |ledger, _| ledger.left.len() == living)?;
        let timers: usize = self.ledger.left.iter().map(|left| left.timers).sum();
        let heartbeats: u64 = self.ledger.left.iter().map(|left| left.heartbeats).sum();
        self.timeline.say(format!("{heartbeats} heartbeats were sent, {timers} timers are left"));
        require(timers == 0, "timers are left of connections that have ended")
    }

    /// Returns the connections of some clients.
    fn of(&self, is_wanted: impl Fn(u32) -> bool) -> Vec<usize> {
        let clients = (0..self.options.clients).filter(|client| is_wanted(*client));
        let connections = clients.flat_map(|client| self.options.connections_of(client));
        connections.map(|connection| connection as usize).collect()
    }

    /// Waits until something holds of each of these connections.
    fn wait_for(
        &mut self,
        what: &str,
        connections: &[usize],
        holds: impl Fn(&Ledger, usize) -> bool,
    ) -> Result<(), Box<dyn Error>> {
        let give_up = Instant::now() + PATIENCE + self.options.terms().idle_timeout;
        loop {
            let holds = |connection: &&usize| holds(&self.ledger, **connection);
            let count = connections.iter().filter(holds).count();
            if count == connections.len() {
                return Ok(());
            }
            let message = format!("only {count} of {} are {what}", connections.len());
            require(Instant::now() < give_up, &message)?;
            self.watch(Duration::from_millis(10));
        }
    }

    /// Takes down for so long what is reported.
    fn watch(&mut self, duration: Duration) {
        let end = Instant::now() + duration;
        let left = || end.saturating_duration_since(Instant::now());
        while let Ok((source, report)) = self.crew.reports.recv_timeout(left()) {
            self.ledger.enter(source, report);
        }
    }

    fn require_untouched(&self, connections: &[usize]) -> Result<(), Box<dyn Error>> {
        let is_untouched = |of: &usize| self.ledger.at_server[*of].is_untouched();
        require(connections.iter().all(is_untouched), "a living connection was closed")
    }

    /// Reports the silences, of which none was noticed early, and none much too late.
    fn tell_silences(&self, who: &str, seen: &[Seen]) -> Result<(), Box<dyn Error>> {
        let idle_timeout = self.options.terms().idle_timeout;
        let silences = || seen.iter().flat_map(|seen| &seen.silences);
        let (count, shortest, longest) = (silences().count(), silences().min(), silences().max());
        let (Some(shortest), Some(longest)) = (shortest, longest) else { return Ok(()) };
        require(*shortest >= idle_timeout, "a connection was given up too early")?;
        let (first, last) = (*shortest - idle_timeout, *longest - idle_timeout);
        self.timeline.say(format!(
            "{who} gave {count} connections up, {first:.1?} to {last:.1?} after the idle timeout"
        ));
        require(last <= LATE, "a connection was given up much too late")
    }
}

fn require(holds: bool, otherwise: &str) -> Result<(), Box<dyn Error>> {
    if holds { Ok(()) } else { Err(otherwise.into()) }
}
