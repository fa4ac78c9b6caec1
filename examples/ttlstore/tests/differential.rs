//! Random commands to a real redis-server and to ours, through the same client: the same replies.
//!
//! They are asked one after the other, so no key expires meanwhile: each lives for minutes, and a
//! TTL may differ by the time that has passed. `TTLSTORE_SEED` says which sequences. It needs
//! redis-server, and fails without. Lines that are typed are drawn as well, with their quotes.

mod common;

use common::{Server, connect};
use fastrand::Rng;
use redis::{Connection, ConnectionLike, Value};
use std::env;
use std::io::{Read, Write};
use std::iter;
use std::os::unix::net::UnixStream;
use std::time::Instant;
use tickwheel_services::RedisServer;

const KEYS: [&str; 4] = ["a", "b", "key:1", "\u{e9}*[x]"];
const STEPS: usize = 60;

#[test]
fn both_servers_give_the_same_replies() {
    let first = first_seed();
    let theirs = RedisServer::start().expect("a redis-server");
    let ours = Server::real();
    let mut replies = 0;
    let mut errors = 0;
    for seed in first..first + 200 {
        let protocol = 2 + (seed % 2) as u8;
        let mut pair = [theirs.url(), ours.url.clone()].map(|url| connect(&url, protocol));
        let mut random = Rng::with_seed(seed);
        let start = Instant::now();
        let mut told = Vec::new();
        let steps = (0..STEPS).flat_map(|_| draw(&mut random));
        for words in iter::once(vec!["flushdb".to_owned()]).chain(steps) {
            let [theirs, ours] = pair.each_mut().map(|client| ask(client, &words));
            told.push(format!("{words:?} -> {theirs:?}"));
            let passed_ms = start.elapsed().as_millis() as i64 + 2;
            assert!(
                equal(&theirs, &ours, passed_ms),
                "TTLSTORE_SEED={seed}: ours is {ours:?} after\n{}",
                told.join("\n")
            );
            replies += 1;
            errors += u64::from(matches!(theirs, Value::ServerError(_)));
        }
    }
    println!("{replies} replies, {errors} of them errors");
    assert!(errors * 2 < replies, "most commands are right");
}

fn first_seed() -> u64 {
    let seed = env::var("TTLSTORE_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    seed.unwrap_or_else(|| fastrand::u64(..1 << 32))
}

#[test]
fn both_servers_split_lines_alike() {
    let theirs = RedisServer::start().expect("a redis-server");
    let path = theirs.url().replace("redis+unix://", "");
    let ours = Server::real();
    let first = first_seed();
    let mut errors = 0;
    for seed in first..first + 300 {
        let mut random = Rng::with_seed(seed);
        let mut line = "ping ".to_owned();
        for _ in 0..random.usize(..8) {
            line += [
                "\"", "\"", "'", "'", "\\", "\\x", "4", "f", "n", " ", "z", "\t",
            ][random.usize(..12)];
        }
        let sent = format!("{line}\r\nquit\r\n");
        let mut stream = UnixStream::connect(&path).expect("it listens");
        stream.write_all(sent.as_bytes()).expect("it is sent");
        let mut told = Vec::new();
        stream.read_to_end(&mut told).expect("it ends");
        let mut client = ours.raw();
        client.send(&sent);
        assert_eq!(client.rest(), told, "TTLSTORE_SEED={seed}: {line:?}");
        errors += u64::from(told.starts_with(b"-ERR Protocol error"));
    }
    assert!((1..299).contains(&errors), "{errors} lines were refused");
}

/// But for the flags, of which ours tells none, and for the options that ours refuses.
#[test]
fn both_servers_list_the_commands_alike() {
    let theirs = RedisServer::start().expect("a redis-server");
    let ours = Server::real();
    let mut pair = [theirs.url(), ours.url.clone()].map(|url| connect(&url, 2));
    let listed = array(ask(&mut pair[1], &words("command")));
    assert_eq!(
        ask(&mut pair[1], &words("command count")),
        Value::Int(listed.len() as i64)
    );
    for ours in listed.into_iter().map(array) {
        let Value::BulkString(name) = &ours[0] else {
            panic!("{ours:?}")
        };
        let line = format!("command info {}", String::from_utf8_lossy(name));
        let mut told = array(ask(&mut pair[0], &words(&line)));
        let theirs = array(told.remove(0));
        assert_eq!(ours[0], theirs[0]);
        assert_eq!(least_words(&ours[1]), least_words(&theirs[1]), "{line}");
        assert_eq!(ours[3..], theirs[3..6], "{line}");
    }
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

fn array(value: Value) -> Vec<Value> {
    match value {
        Value::Array(values) => values,
        other => panic!("{other:?} is no array"),
    }
}

/// An arity is negative if there may be more words.
fn least_words(arity: &Value) -> u64 {
    match arity {
        Value::Int(arity) => arity.unsigned_abs(),
        other => panic!("{other:?} is no number"),
    }
}

fn ask(client: &mut Connection, words: &[String]) -> Value {
    let mut command = redis::Cmd::new();
    words.iter().for_each(|word| _ = command.arg(word));
    let reply = client.req_packed_command(&command.get_packed_command());
    reply.unwrap_or_else(|error| panic!("{error} after {words:?}"))
}

/// Returns whether both say the same, but for the order of keys, and a TTL for the time that has
/// passed.
fn equal(theirs: &Value, ours: &Value, passed_ms: i64) -> bool {
    match (theirs, ours) {
        (Value::Int(theirs), Value::Int(ours)) if *theirs > 0 && *ours > 0 => {
            // A TTL in seconds is rounded. Other numbers are small.
            let least = if *theirs > 60_000 {
                passed_ms
            } else {
                i64::from(*theirs > 60)
            };
            (theirs - ours).abs() <= least
        }
        (Value::Array(theirs), Value::Array(ours)) if theirs.len() == ours.len() => {
            let sorted = |values: &[Value]| {
                let mut values = values.to_vec();
                if values
                    .iter()
                    .all(|value| matches!(value, Value::BulkString(_)))
                {
                    values.sort_by_key(|value| format!("{value:?}"));
                }
                values
            };
            let theirs = sorted(theirs);
            let ours = sorted(ours);
            theirs
                .iter()
                .zip(&ours)
                .all(|(theirs, ours)| equal(theirs, ours, passed_ms))
        }
        _ => theirs == ours,
    }
}

/// Draws a command, or a transaction of some.
fn draw(random: &mut Rng) -> Vec<Vec<String>> {
    if random.u8(..10) > 0 {
        return vec![command(random)];
    }
    let mut steps = vec![vec!["multi".to_owned()]];
    steps.extend((0..random.usize(..6)).map(|_| command(random)));
    steps.push(vec![
        ["exec", "exec", "exec", "discard"][random.usize(..4)].to_owned(),
    ]);
    steps
}

fn command(random: &mut Rng) -> Vec<String> {
    let line = [
        "set KEY VALUE",
        "set KEY VALUE OPTION",
        "set KEY VALUE OPTION OPTION",
        "SETEX KEY TTL VALUE",
        "psetex KEY TTL000 VALUE",
        "get KEY",
        "mget KEY KEY KEY",
        "mset KEY VALUE KEY VALUE",
        "incr KEY",
        "incrby KEY VALUE",
        "incrby KEY TTL",
        "del KEY KEY",
        "del KEY",
        "exists KEY KEY KEY",
        "expire KEY TTL",
        "PEXPIRE KEY TTL000",
        "expireat KEY DATE",
        "PEXPIREAT KEY DATE000",
        "getex KEY",
        "GETEX KEY PERSIST",
        "getex KEY OPTION",
        "getex KEY OPTION OPTION",
        "getex KEY persist OPTION",
        "getex KEY EXAT DATE",
        "getex KEY pxat DATE000",
        "ttl KEY",
        "pttl KEY",
        "persist KEY",
        "eval RELEASE 1 KEY VALUE",
        "scan 0 match PATTERN count 1000",
        "scan 0 COUNT VALUE",
        "dbsize",
        "flushdb OPTION",
        "publish KEY VALUE",
        "ping VALUE",
        "echo VALUE",
        "select 16",
        "select KEY",
        "scan KEY",
        "exec",
        "discard",
        "set KEY",
        "get KEY KEY",
        "mset KEY",
        "nonesuch KEY VALUE",
        "client setname me",
        "hello VALUE",
    ][random.usize(..47)];
    // Both scan all keys at once, but a step with a small COUNT ends anywhere.
    let line = line.replace("COUNT VALUE", "COUNT 0");
    line.split(' ')
        .flat_map(|word| expand(word, random))
        .collect()
}

/// Replaces a word in capitals by one or two that are drawn.
fn expand(word: &str, random: &mut Rng) -> Vec<String> {
    let mut one = |words: &[&str]| words[random.usize(..words.len())].to_owned();
    match word {
        "KEY" => vec![one(&KEYS)],
        "RELEASE" => vec![
            "if redis.call('get', KEYS[1]) == ARGV[1]
             then return redis.call('del', KEYS[1]) else return 0 end"
                .to_owned(),
        ],
        "VALUE" => vec![one(&[
            "",
            "v",
            "0",
            "1",
            "-7",
            "+1",
            "007",
            "9223372036854775807",
            "a b",
        ])],
        "TTL" | "TTL000" => {
            let odd = [
                "0",
                "-1",
                "abc",
                "1.5",
                "9223372036854775807",
                "9223372036854775",
            ];
            let time = if random.u8(..6) == 0 {
                odd[random.usize(..6)].to_owned()
            } else {
                (120 + random.u64(..9000)).to_string()
            };
            vec![time + &word["TTL".len()..]]
        }
        "DATE" | "DATE000" => {
            let dates = [
                "4102444800",
                "4102444801",
                "1",
                "0",
                "-1",
                "x",
                "9223372036854775807",
            ];
            vec![one(&dates) + &word["DATE".len()..]]
        }
        "OPTION" => match random.u8(..8) {
            0 => vec!["nx".to_owned()],
            1 => vec!["XX".to_owned()],
            2 => vec!["get".to_owned()],
            3 => vec!["keepttl".to_owned()],
            4 => vec!["ex".to_owned(), (120 + random.u64(..9000)).to_string()],
            5 => vec![
                "PX".to_owned(),
                (120_000 + random.u64(..9_000_000)).to_string(),
            ],
            6 => vec![
                "pxat".to_owned(),
                ["4102444800000", "0", "x"][random.usize(..3)].to_owned(),
            ],
            _ => vec!["async".to_owned()],
        },
        "PATTERN" => vec![one(&[
            "*", "key:*", "*:1", "k*y*", "?", "[a-b]", "[b-a]", "[^a]", "[ab", "\\a", "*[[]x]",
            "*\\[*", "",
        ])],
        word => vec![word.to_owned()],
    }
}
