//! The table of commands.

use super::connection::{client, config, hello, info, ping, quit, select};
use super::keys::{dbsize, del, exists, expire, flushdb, persist, scan, ttl};
use super::pubsub::{change, publish};
use super::strings::{add, get, mget, mset, set, set_for};
use super::{Call, Outcome, Refusal, discard, exec, multi};
use std::borrow::Cow;
use std::fmt::Write;
use std::ops::RangeInclusive;

pub(super) struct Command {
    pub(super) name: &'static str,
    /// How many words it takes, its name included.
    words: RangeInclusive<usize>,
    pub(super) flags: u8,
    pub(super) run: fn(&mut Call<'_>) -> Outcome,
}

/// It may need memory, and is refused when there is none.
pub(super) const ROOM: u8 = 1;
/// It is never queued.
pub(super) const AT_ONCE: u8 = 2;
/// Subscribers may use it.
pub(super) const LISTENS: u8 = 4;

const ANY: usize = usize::MAX;

const fn command(
    name: &'static str,
    words: RangeInclusive<usize>,
    flags: u8,
    run: fn(&mut Call<'_>) -> Outcome,
) -> Command {
    Command { name, words, flags, run }
}

static COMMANDS: [Command; 33] = [
    command("get", 2..=2, 0, get),
    command("set", 3..=ANY, ROOM, set),
    command("setex", 4..=4, ROOM, set_for),
    command("psetex", 4..=4, ROOM, set_for),
    command("mget", 2..=ANY, 0, mget),
    command("mset", 3..=ANY, ROOM, mset),
    command("incr", 2..=2, ROOM, add),
    command("incrby", 3..=3, ROOM, add),
    command("del", 2..=ANY, 0, del),
    command("exists", 2..=ANY, 0, exists),
    command("expire", 3..=3, 0, expire),
    command("pexpire", 3..=3, 0, expire),
    command("ttl", 2..=2, 0, ttl),
    command("pttl", 2..=2, 0, ttl),
    command("persist", 2..=2, 0, persist),
    command("scan", 2..=ANY, 0, scan),
    command("dbsize", 1..=1, 0, dbsize),
    command("flushdb", 1..=ANY, 0, flushdb),
    command("multi", 1..=1, AT_ONCE, multi),
    command("exec", 1..=1, AT_ONCE, exec),
    command("discard", 1..=1, AT_ONCE, discard),
    command("subscribe", 2..=ANY, LISTENS, change),
    command("unsubscribe", 1..=ANY, LISTENS, change),
    command("psubscribe", 2..=ANY, LISTENS, change),
    command("punsubscribe", 1..=ANY, LISTENS, change),
    command("publish", 3..=3, 0, publish),
    command("ping", 1..=2, LISTENS, ping),
    command("hello", 1..=ANY, 0, hello),
    command("client", 2..=ANY, 0, client),
    command("config", 2..=ANY, 0, config),
    command("select", 2..=2, 0, select),
    command("info", 1..=ANY, 0, info),
    command("quit", 1..=ANY, AT_ONCE | LISTENS, quit),
];

/// Finds the command that the words ask for.
pub(super) fn find(args: &[Vec<u8>]) -> Result<&'static Command, Refusal> {
    let is = |command: &&Command| args[0].eq_ignore_ascii_case(command.name.as_bytes());
    match COMMANDS.iter().find(is) {
        Some(command) if command.words.contains(&args.len()) => Ok(command),
        Some(command) => Err(wrong_count(command.name)),
        None => Err(unknown(&args[0], &args[1..])),
    }
}

pub(super) fn wrong_count(name: &str) -> Refusal {
    format!("ERR wrong number of arguments for '{name}' command").into()
}

/// Refuses a command by its name, in the words of Redis.
fn unknown(name: &[u8], rest: &[Vec<u8>]) -> Refusal {
    let mut text = format!("ERR unknown command '{}', with args beginning with: ", shown(name));
    for word in rest {
        if text.len() > 128 {
            break;
        }
        let _ = write!(text, "'{}' ", shown(word)); // A string takes everything.
    }
    text.into()
}

/// Returns a word as errors show it.
pub(super) fn shown(word: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(&word[..word.len().min(128)])
}
