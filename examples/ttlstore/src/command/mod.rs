//! The commands: what each is called, how many words it takes, and what it does.

mod connection;
mod expire;
mod info;
mod options;
mod strings;

use crate::client::Client;
use crate::deadline::Now;
use crate::request::Args;
use crate::shared::Shared;
use crate::slot::{Found, Full, Slot};
use std::borrow::Cow;
use std::sync::atomic::Ordering;

/// A command that runs.
struct Call<'a> {
    shared: &'a Shared,
    client: &'a mut Client,
    args: Args<'a>,
    now: Now,
    /// In lower case.
    name: &'static str,
}

/// An error, as the client reads it.
struct Failure(Cow<'static, str>);

type Outcome = Result<(), Failure>;

/// How many words a command takes, its name included.
#[derive(Clone, Copy)]
enum Arity {
    Exactly(usize),
    AtLeast(usize),
}

use Arity::{AtLeast, Exactly};

type Command = (&'static str, Arity, fn(&mut Call<'_>) -> Outcome);

/// The most frequent first: they are looked for in this order.
const COMMANDS: [Command; 31] = [
    ("get", Exactly(2), strings::get),
    ("set", AtLeast(3), strings::set),
    ("ping", AtLeast(1), connection::ping),
    ("del", AtLeast(2), strings::del),
    ("exists", AtLeast(2), strings::exists),
    ("getex", AtLeast(2), strings::getex),
    ("expire", AtLeast(3), expire::expire),
    ("pexpire", AtLeast(3), expire::pexpire),
    ("expireat", AtLeast(3), expire::expireat),
    ("pexpireat", AtLeast(3), expire::pexpireat),
    ("ttl", Exactly(2), expire::ttl),
    ("pttl", Exactly(2), expire::pttl),
    ("expiretime", Exactly(2), expire::expiretime),
    ("pexpiretime", Exactly(2), expire::pexpiretime),
    ("persist", Exactly(2), expire::persist),
    ("dbsize", Exactly(1), info::dbsize),
    ("keys", Exactly(2), info::keys),
    ("flushall", AtLeast(1), info::flush),
    ("flushdb", AtLeast(1), info::flush),
    ("info", AtLeast(1), info::info),
    ("command", AtLeast(1), info::command),
    ("config", AtLeast(2), info::config),
    ("subscribe", AtLeast(2), connection::subscribe),
    ("unsubscribe", AtLeast(1), connection::unsubscribe),
    ("echo", Exactly(2), connection::echo),
    ("hello", AtLeast(1), connection::hello),
    ("auth", AtLeast(2), connection::auth),
    ("select", Exactly(2), connection::select),
    ("client", AtLeast(2), connection::client),
    ("reset", Exactly(1), connection::reset),
    ("quit", AtLeast(1), connection::quit),
];

/// Runs a request, and writes its reply.
pub fn run(shared: &Shared, client: &mut Client, args: Args<'_>, now: Now) {
    let Some(word) = args.get(0) else { return };
    shared.counts.commands.fetch_add(1, Ordering::Relaxed);
    let known = COMMANDS.iter().find(|known| word.eq_ignore_ascii_case(known.0.as_bytes()));
    let outcome = match known {
        None => Err(unknown(word, args)),
        Some((name, arity, _)) if !arity.takes(args.len()) => Err(wrong_arity(name)),
        Some((name, _, _)) if client.is_listening_only() && !is_for_listeners(name) => {
            Err(listens_only(name))
        }
        Some((name, _, command)) => command(&mut Call { shared, client, args, now, name }),
    };
    if let Err(Failure(text)) = outcome {
        client.reply.error(&text);
    }
}

fn is_for_listeners(name: &str) -> bool {
    ["subscribe", "unsubscribe", "ping", "quit", "reset"].contains(&name)
}

impl Arity {
    fn takes(self, words: usize) -> bool {
        match self {
            Exactly(count) => words == count,
            AtLeast(count) => words >= count,
        }
    }
}

impl<'a> Call<'a> {
    /// Returns a word that the arity promises.
    fn word(&self, index: usize) -> &'a [u8] {
        self.args.get(index).unwrap_or_default()
    }

    /// Returns the first word's key, locked, if it is present.
    fn find(&self) -> Option<Found<'a>> {
        self.shared.store.find(self.word(1), self.now.instant)
    }

    /// Returns the same, whether it is present or not.
    fn slot(&self) -> Slot<'a> {
        self.shared.store.slot(self.word(1), self.now.instant)
    }
}

impl From<Full> for Failure {
    fn from(_: Full) -> Self {
        Failure("ERR no room for more keys".into())
    }
}

fn syntax_error() -> Failure {
    Failure("ERR syntax error".into())
}

fn not_an_integer() -> Failure {
    Failure("ERR value is not an integer or out of range".into())
}

fn listens_only(name: &str) -> Failure {
    let allowed = "(P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET";
    let text = format!("ERR Can't execute '{name}': only {allowed} are allowed in this context");
    Failure(text.into())
}

fn wrong_arity(name: &str) -> Failure {
    Failure(format!("ERR wrong number of arguments for '{name}' command").into())
}

fn unknown_subcommand(call: &Call<'_>) -> Failure {
    let (subcommand, name) = (shown(call.word(1), 128), call.name.to_uppercase());
    Failure(format!("ERR unknown subcommand '{subcommand}'. Try {name} HELP.").into())
}

/// Tells the beginning of what came, as Redis does.
fn unknown(word: &[u8], args: Args<'_>) -> Failure {
    let mut beginning = String::new();
    for arg in args.from(1) {
        if beginning.len() >= 128 {
            break;
        }
        beginning += &format!("'{}' ", shown(arg, 128 - beginning.len()));
    }
    let name = shown(word, 128);
    Failure(format!("ERR unknown command '{name}', with args beginning with: {beginning}").into())
}

fn shown(word: &[u8], max_len: usize) -> Cow<'_, str> {
    String::from_utf8_lossy(&word[..word.len().min(max_len)])
}
