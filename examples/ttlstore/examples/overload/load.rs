//! Clients that send so many SETs a second, whether the server takes them or not.

use hdrhistogram::Histogram;
use std::io::{Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

const CLIENTS: u64 = 4;
/// Commands that are written at once.
const BATCH: u64 = 256;
const REPLY: &[u8] = b"+OK\r\n";

/// What was answered of what was offered.
pub(crate) struct Load {
    pub(crate) answered: u64,
    /// Before the load ended.
    pub(crate) answered_in_time: u64,
    /// From when a command was due, also if it could not be sent then.
    pub(crate) late_us: Histogram<u64>,
    pub(crate) ended: Instant,
    /// Bytes that no reply has.
    pub(crate) wrong: u64,
}

impl Load {
    /// Offers `rate` commands a second; then waits until those that were sent are answered.
    pub(crate) fn offer(port: u16, rate: f64, time: Duration) -> Result<Self> {
        let start = Instant::now();
        let ended = start + time;
        let late_us = Histogram::new(3).expect("a precision that there is");
        let mut load = Load { answered: 0, answered_in_time: 0, late_us, ended, wrong: 0 };
        thread::scope(|scope| {
            let mut clients = Vec::new();
            for client in 0..CLIENTS {
                let stream = TcpStream::connect(("127.0.0.1", port))?;
                stream.set_nodelay(true)?;
                let reader = stream.try_clone()?;
                let schedule = Schedule { start, ended, rate: rate / CLIENTS as f64 };
                scope.spawn(move || send(stream, client, schedule));
                clients.push(scope.spawn(move || receive(reader, schedule)));
            }
            for client in clients {
                let answered = client.join().expect("no reader panics")?;
                load.answered += answered.answered;
                load.answered_in_time += answered.answered_in_time;
                load.wrong += answered.wrong;
                load.late_us.add(answered.late_us).expect("histograms of one kind");
            }
            Ok(load)
        })
    }
}

/// When each command of a client is due.
#[derive(Clone, Copy)]
struct Schedule {
    start: Instant,
    ended: Instant,
    rate: f64,
}

impl Schedule {
    /// Returns how many are due by now.
    fn due(&self) -> u64 {
        (self.start.elapsed().as_secs_f64() * self.rate) as u64
    }

    /// Returns when this one is due.
    fn at(&self, number: u64) -> Instant {
        self.start + Duration::from_secs_f64(number as f64 / self.rate)
    }
}

/// Sends what is due. If the server does not take it, this waits, and what is due waits as well.
fn send(mut stream: TcpStream, client: u64, schedule: Schedule) -> Result<()> {
    let (mut sent, mut batch) = (0, Vec::new());
    while Instant::now() < schedule.ended {
        let due = schedule.due().saturating_sub(sent).min(BATCH);
        if due == 0 {
            thread::sleep(Duration::from_micros(500));
            continue;
        }
        batch.clear();
        for number in sent..sent + due {
            let key = format!("{client}:{number:010}");
            let (length, head) = (key.len(), "*5\r\n$3\r\nSET\r\n");
            write!(batch, "{head}${length}\r\n{key}\r\n$5\r\nvalue\r\n$2\r\nPX\r\n$4\r\n1000\r\n")?;
        }
        stream.write_all(&batch)?;
        sent += due;
    }
    stream.shutdown(Shutdown::Write)
}

/// Reads replies until the server has answered all.
fn receive(mut stream: TcpStream, schedule: Schedule) -> Result<Load> {
    let late_us = Histogram::new(3).expect("a precision that there is");
    let mut load =
        Load { answered: 0, answered_in_time: 0, late_us, ended: schedule.ended, wrong: 0 };
    let (mut bytes, mut piece) = (0, vec![0; 1 << 16]);
    loop {
        let length = stream.read(&mut piece)?;
        if length == 0 {
            return Ok(load);
        }
        let wanted = REPLY.iter().cycle().skip(bytes % REPLY.len());
        load.wrong +=
            piece[..length].iter().zip(wanted).filter(|(got, it)| got != it).count() as u64;
        bytes += length;
        let (now, answered) = (Instant::now(), (bytes / REPLY.len()) as u64);
        if schedule.rate.is_finite() && answered > load.answered {
            // Those that come at once are as late as the last of them, or a little later.
            let late = now.saturating_duration_since(schedule.at(answered - 1));
            let count = answered - load.answered;
            load.late_us.record_n(late.as_micros() as u64, count).expect("it grows");
        }
        load.answered = answered;
        if now <= schedule.ended {
            load.answered_in_time = answered;
        }
    }
}
