//! Random commands to a real redis-server and to ours, through the same client: the same replies.
//!
//! `raw.rs` compares what no library sends. `TTLSTORE_SEQUENCES` says how many sequences of
//! commands, `TTLSTORE_SEED` which. It needs redis-server, and fails without.

#[path = "../common/mod.rs"]
mod common;
mod draws;
mod raw;
mod redis_server;
mod sequence;

use common::{Server, connect};
use redis::{Connection, RedisResult, Value};
use redis_server::RedisServer;
use sequence::{Sequence, Step};
use std::collections::HashMap;
use std::env;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// Servers of each kind: a sequence mostly waits, for the other side or for a key to expire.
const PAIRS: u64 = 4;

#[test]
fn both_servers_give_the_same_replies() {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let sequences = number("TTLSTORE_SEQUENCES").unwrap_or(300);
    let seed = number("TTLSTORE_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("TTLSTORE_SEED={seed} TTLSTORE_SEQUENCES={sequences}");
    let counts = Mutex::new(Counts::default());
    thread::scope(|scope| {
        for first in 0..PAIRS {
            let counts = &counts;
            scope.spawn(move || {
                let (theirs, ours) = (RedisServer::start(), Server::real());
                for number in (first..sequences).step_by(PAIRS as usize) {
                    let protocol = 2 + (number / PAIRS % 2) as u8;
                    let mut pair =
                        [theirs.port, ours.address.port()].map(|it| connect(it, protocol));
                    compare(&mut pair, Sequence::new(seed + number), counts);
                }
            });
        }
    });
    let counts = counts.into_inner().expect("no thread panicked");
    println!("{} replies, {} of them errors", counts.replies, counts.errors);
    // Each command was seen, and most of them were right.
    assert!(counts.errors * 3 < counts.replies, "too many are wrong");
    for command in draws::COMMANDS {
        let seen = counts.by_command.get(command).copied().unwrap_or(0);
        assert!(seen > sequences / 10, "{command} was asked {seen} times only");
    }
}

#[derive(Default)]
struct Counts {
    replies: u64,
    errors: u64,
    by_command: HashMap<String, u64>,
}

fn compare(pair: &mut [Connection; 2], mut sequence: Sequence, counts: &Mutex<Counts>) {
    let seed = sequence.seed;
    let start = Instant::now();
    let mut told = Vec::new();
    while let Some(step) = sequence.next() {
        let words = match step {
            Step::Pass(time) => {
                thread::sleep(time);
                continue;
            }
            Step::Ask(words) => words,
        };
        let [theirs, ours] = pair.each_mut().map(|client| reply(client, &words));
        let line = words.iter().map(|word| word.escape_ascii().to_string()).collect::<Vec<_>>();
        told.push(format!("{} -> {theirs:?}", line.join(" ")));
        let command = line[0].to_lowercase();
        assert!(
            equal(&command, &theirs, &ours, &sequence, start.elapsed()),
            "seed {seed}: ours is {ours:?} after\n{}",
            told.join("\n")
        );
        let mut counts = counts.lock().expect("no thread panicked");
        counts.replies += 1;
        counts.errors += u64::from(theirs.is_err());
        *counts.by_command.entry(command).or_default() += 1;
    }
}

type Told = Result<Value, String>;

fn reply(client: &mut Connection, words: &[Vec<u8>]) -> Told {
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(&word[..]);
    }
    let reply: RedisResult<Value> = command.query(client);
    let has_no_order = [&b"keys"[..], b"scan"].contains(&&*words[0]);
    match reply {
        Ok(value) if has_no_order => Ok(sorted(value)),
        Ok(value) => Ok(value),
        Err(error) if error.is_io_error() => panic!("{error} after {words:?}"),
        Err(error) => Err(format!("{:?} {:?}", error.code(), error.detail())),
    }
}

/// Keys come in no order, also inside another array.
fn sorted(value: Value) -> Value {
    let Value::Array(values) = value else { return value };
    let mut values: Vec<_> = values.into_iter().map(sorted).collect();
    values.sort_by_key(|value| format!("{value:?}"));
    Value::Array(values)
}

/// Returns whether both have said the same. They are asked one after the other: what is left of a
/// TTL, and when one ends that began with the command, may differ by the time that has passed.
/// Dates may not.
fn equal(command: &str, theirs: &Told, ours: &Told, sequence: &Sequence, passed: Duration) -> bool {
    if theirs == ours {
        return true;
    }
    let (Ok(Value::Int(theirs)), Ok(Value::Int(ours))) = (theirs, ours) else { return false };
    let passed_ms = i64::try_from(passed.as_millis()).expect("no test lasts for ages") + 2;
    let is_date = |wall_ms: i64| sequence.dates_ms.contains(&wall_ms);
    let tolerance = match command {
        _ if *theirs <= 0 || *ours <= 0 => return false,
        "pexpiretime" if is_date(*theirs) => return false,
        "ttl" | "expiretime" => passed_ms / 1000 + 1,
        "pttl" | "pexpiretime" => passed_ms,
        _ => return false,
    };
    (theirs - ours).abs() <= tolerance
}
