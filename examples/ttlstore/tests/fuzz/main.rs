//! Traffic of real clients, mutated: the program lives, answers others, and stays small.
//!
//! `tests/traffic` is what the clients of `clients/` send. At least 100,000 requests are sent;
//! `TTLSTORE_FUZZ_SECONDS` says for how long at least (5), and `TTLSTORE_SEED` which mutations. If
//! it fails, the last inputs are printed; `TTLSTORE_INPUT` sends one of them before the others.

#[path = "../common/mod.rs"]
mod common;
mod mutation;
#[path = "../running/mod.rs"]
mod running;

use common::{PATIENCE, connect, parsed, told};
use fastrand::Rng;
use mutation::mutated;
use running::Program;
use std::env;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel_ttlstore::request::Limits;

const REQUESTS: u64 = 100_000;
const ATTACKERS: u64 = 4;
const MIB: u64 = 1 << 20;

/// Keys and connections may take 64 MiB each; what else the program takes is a good deal less than
/// the rest.
const MAX_RSS: u64 = 400 * MIB;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().and_then(|text| text.parse().ok())
}

fn seed() -> u64 {
    let seed = number("TTLSTORE_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("TTLSTORE_SEED={seed}");
    seed
}

fn start() -> Program {
    let limit = (64 * MIB).to_string();
    let policy = ["--maxmemory", &limit, "--maxmemory-policy", "volatile-ttl"];
    let bounds = ["--max-held-bytes", &limit, "--max-stall-seconds", "2"];
    Program::start(&[policy, bounds].concat())
}

#[test]
fn mutated_traffic_does_no_harm() {
    let time = Duration::from_secs(number("TTLSTORE_FUZZ_SECONDS").unwrap_or(5));
    let seed = seed();
    let mut program = start();
    let port = program.port("listening on ");
    if let Some(input) = number("TTLSTORE_INPUT") {
        attack(port, &mut Rng::with_seed(input));
    }
    let suspects = Suspects([const { AtomicU64::new(0) }; ATTACKERS as usize]);
    let mut client = connect(port, 2);
    let (start, sent) = (Instant::now(), AtomicU64::new(0));
    let goes_on = || {
        let is_enough = sent.load(Ordering::Relaxed) >= REQUESTS && start.elapsed() >= time;
        !is_enough && start.elapsed() < time + 6 * PATIENCE
    };
    let (mut slowest, mut largest) = (Duration::ZERO, 0);
    thread::scope(|scope| {
        for attacker in 0..ATTACKERS {
            let (suspects, sent) = (&suspects, &sent);
            scope.spawn(move || {
                let mut inputs = Rng::with_seed(seed + attacker);
                while goes_on() {
                    let input = inputs.u64(..);
                    suspects.0[attacker as usize].store(input, Ordering::Relaxed);
                    let requests = attack(port, &mut Rng::with_seed(input));
                    sent.fetch_add(requests, Ordering::Relaxed);
                }
            });
        }
        while goes_on() {
            let asked = Instant::now();
            // Another may have ended this connection, by CLIENT KILL.
            let alive = redis::cmd("PING").query::<String>(&mut client);
            match alive {
                Ok(reply) => assert_eq!(reply, "PONG"),
                Err(_) => client = connect(port, 2),
            }
            slowest = slowest.max(asked.elapsed());
            largest = largest.max(program.rss());
            assert!(largest < MAX_RSS, "{} MiB", largest / MIB);
            thread::sleep(Duration::from_millis(20));
        }
    });
    let (sent, mib) = (sent.load(Ordering::Relaxed), largest / MIB);
    println!("{sent} requests, up to {mib} MiB, the slowest PING took {slowest:?}");
    assert!(slowest < PATIENCE, "a PING took {slowest:?}");
    client = connect(port, 2);
    common::until("all others are gone", || {
        told(&mut client, "info clients").contains("connected_clients:1\r")
    });
    // After them: what they have sent may be served for a while yet.
    assert_eq!(told(&mut client, "flushall"), "OK");
    program.assert_idle();
    let end = program.end(rustix::process::Signal::TERM);
    assert!(end.contains("ending: 0 keys are lost"), "{end}");
}

/// However such traffic is cut, the parser sees the same.
#[test]
fn mutated_traffic_is_the_same_in_any_pieces() {
    let mut inputs = Rng::with_seed(seed());
    let limits = Limits { max_frame: 1 << 20, max_args: 1000 };
    for _ in 0..2000 {
        let input = inputs.u64(..);
        let mut random = Rng::with_seed(input);
        let mut bytes = mutated(&mut random);
        bytes.truncate(20_000);
        let (first, rest) = bytes.split_at(random.usize(..=bytes.len()));
        let (second, third) = rest.split_at(random.usize(..=rest.len()));
        let is_same = parsed(limits, &[first, second, third]) == parsed(limits, &[&bytes]);
        assert!(is_same, "input {input}: {}", bytes.escape_ascii());
    }
}

/// The input that each attacker sent last: printed if the test fails.
struct Suspects([AtomicU64; ATTACKERS as usize]);

impl Drop for Suspects {
    fn drop(&mut self) {
        if thread::panicking() {
            for suspect in &self.0 {
                let input = suspect.load(Ordering::Relaxed);
                let bytes = mutated(&mut Rng::with_seed(input));
                let shown = &bytes[..bytes.len().min(2000)];
                println!("TTLSTORE_INPUT={input}: {}", shown.escape_ascii());
            }
        }
    }
}

/// Sends an input on a connection, in pieces, and reads some of the replies. Returns about how many
/// requests were sent.
fn attack(port: u16, random: &mut Rng) -> u64 {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return 0 };
    stream.set_nonblocking(true).expect("a connection");
    let bytes = mutated(random);
    let mut rest = &bytes[..];
    let mut replies = [0; 1 << 16];
    let start = Instant::now();
    let reads = random.u32(..8) > 0;
    while !rest.is_empty() && start.elapsed() < Duration::from_millis(200) {
        let piece = &rest[..rest.len().min(random.usize(1..20_000))];
        match stream.write(piece) {
            Ok(written) => rest = &rest[written..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
        if reads && matches!(stream.read(&mut replies), Ok(0)) {
            break;
        }
    }
    if random.bool() {
        // It may be closed already.
        let _ = stream.shutdown(Shutdown::Write);
    }
    let sent = &bytes[..bytes.len() - rest.len()];
    sent.iter().filter(|byte| **byte == b'*').count() as u64
}
