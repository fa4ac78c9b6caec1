//! The commands: how a request finds its own, and transactions of them.

mod keys;
mod connection;

use crate::connections::{Session, Transaction};
use crate::resp::{Reply, Request, size};
use crate::store::{NO_MEMORY, Store};
use std::borrow::Cow;
use std::fmt::Write;
use std::mem;
use std::ops::RangeInclusive;

/// What a command says if it can't be done.
type Refusal = Cow<'static, str>;
type Outcome = Result<(), Refusal>;

const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const SYNTAX: &str = "ERR syntax error";

struct Command {
    name: &'static str,
    /// How many words it takes, its name included.
    words: RangeInclusive<usize>,
    flags: u8,
    run: fn(&mut Call<'_>) -> Outcome,
}

/// It may need memory, and is refused when there is none.
const ROOM: u8 = 1;
/// It is never queued.
const AT_ONCE: u8 = 2;
/// Subscribers may use it.
const LISTENS: u8 = 4;
/// The word after its name is a key.
const KEY: u8 = 8;
/// All words after its name are keys.
const KEYS: u8 = 16;
/// The words after its name are keys and values in turn.
const PAIRS: u8 = 32;

const ANY: usize = usize::MAX;

const fn command(
    name: &'static str,
    words: RangeInclusive<usize>,
    flags: u8,
    run: fn(&mut Call<'_>) -> Outcome,
) -> Command {
    Command {
        name,
        words,
        flags,
        run,
    }
}

static COMMANDS: [Command; 40] = [
    command("get", 2..=2, KEY, keys::get),
    command("getex", 2..=ANY, KEY, keys::get_and_reschedule),
    command("set", 3..=ANY, ROOM | KEY, keys::set),
    command("setex", 4..=4, ROOM | KEY, keys::set_for),
    command("psetex", 4..=4, ROOM | KEY, keys::set_for),
    command("mget", 2..=ANY, KEYS, keys::mget),
    command("mset", 3..=ANY, ROOM | PAIRS, keys::mset),
    command("incr", 2..=2, ROOM | KEY, keys::add),
    command("incrby", 3..=3, ROOM | KEY, keys::add),
    command("del", 2..=ANY, KEYS, keys::del),
    command("eval", 3..=ANY, 0, keys::release),
    command("evalsha", 3..=ANY, 0, keys::release),
    command("exists", 2..=ANY, KEYS, keys::exists),
    command("expire", 3..=3, KEY, keys::expire),
    command("pexpire", 3..=3, KEY, keys::expire),
    command("expireat", 3..=3, KEY, keys::expire),
    command("pexpireat", 3..=3, KEY, keys::expire),
    command("ttl", 2..=2, KEY, keys::ttl),
    command("pttl", 2..=2, KEY, keys::ttl),
    command("persist", 2..=2, KEY, keys::persist),
    command("scan", 2..=ANY, 0, keys::scan),
    command("dbsize", 1..=1, 0, keys::dbsize),
    command("flushdb", 1..=ANY, 0, keys::flushdb),
    command("multi", 1..=1, AT_ONCE, multi),
    command("exec", 1..=1, AT_ONCE, exec),
    command("discard", 1..=1, AT_ONCE, discard),
    command("subscribe", 2..=ANY, LISTENS, connection::change),
    command("unsubscribe", 1..=ANY, LISTENS, connection::change),
    command("psubscribe", 2..=ANY, LISTENS, connection::change),
    command("punsubscribe", 1..=ANY, LISTENS, connection::change),
    command("publish", 3..=3, 0, connection::publish),
    command("ping", 1..=2, LISTENS, connection::ping),
    command("echo", 2..=2, 0, connection::echo),
    command("hello", 1..=ANY, 0, connection::hello),
    command("client", 2..=ANY, 0, connection::client),
    command("command", 1..=ANY, 0, list),
    command("config", 2..=ANY, 0, connection::config),
    command("select", 2..=2, 0, connection::select),
    command("info", 1..=ANY, 0, connection::info),
    command("quit", 1..=ANY, AT_ONCE | LISTENS, connection::quit),
];

/// A command that runs.
struct Call<'a> {
    session: &'a mut Session,
    name: &'static str,
    args: Request,
    reply: &'a mut Reply,
}

impl Call<'_> {
    fn store(&self) -> &Store {
        &self.session.server.store
    }

    /// Takes a word, as a key or a value.
    fn take(&mut self, index: usize) -> Box<[u8]> {
        mem::take(&mut self.args[index]).into_boxed_slice()
    }

    /// Returns what the command's times count in, in milliseconds: PTTL's and the like in one.
    fn unit_ms(&self) -> i64 {
        if self.name.starts_with('p') { 1 } else { 1000 }
    }
}

/// Runs a request, or queues it, and appends what it says to what the client is told.
pub(crate) fn run(session: &mut Session, args: Request) {
    if args.is_empty() {
        return;
    }
    let server = session.server.clone();
    server.commands.set(server.commands.get() + 1);
    // Nothing else may stand within a reply: a message waits for its end.
    let mut reply = server.reply(session.peer.out.take(), session.peer.resp3.get());
    let outcome = admit(session, &args).and_then(|command| match &mut session.transaction {
        Some(transaction) if command.flags & AT_ONCE == 0 => {
            transaction.push(args);
            reply.simple("QUEUED");
            Ok(())
        }
        _ => call(session, command, args, &mut reply),
    });
    outcome.unwrap_or_else(|refusal| reply.error(&refusal));
    if reply.is_overflown {
        // What is left of it would be taken for something else.
        reply.bytes.clear();
        session.is_closing = true;
    }
    let messages = session.peer.out.replace(reply.bytes);
    session.peer.out.borrow_mut().extend(messages);
}

fn call(session: &mut Session, command: &Command, args: Request, reply: &mut Reply) -> Outcome {
    (command.run)(&mut Call {
        session,
        name: command.name,
        args,
        reply,
    })
}

/// Finds the command of a request that may be run or queued. If there is none, a transaction has
/// failed.
fn admit(session: &mut Session, args: &Request) -> Result<&'static Command, Refusal> {
    let admitted = find(session, args).and_then(|command| {
        if session.listens_only() && command.flags & LISTENS == 0 {
            let name = command.name;
            return Err(format!(
                "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT \
                 / RESET are allowed in this context"
            )
            .into());
        }
        Ok(command)
    });
    if let (Err(_), Some(transaction)) = (&admitted, &mut session.transaction) {
        transaction.has_failed = true;
    }
    admitted
}

/// Finds the command of a request, if there is room for what it may store.
fn find(session: &Session, args: &Request) -> Result<&'static Command, Refusal> {
    let command = named(&args[0]).ok_or_else(|| unknown(&args[0], &args[1..]))?;
    if !command.words.contains(&args.len()) {
        return Err(wrong_count(command.name));
    }
    let server = &session.server;
    let room = server
        .limits
        .max_memory
        .saturating_sub(server.store.bytes());
    if command.flags & ROOM != 0 && size(args) > room {
        Err(NO_MEMORY.into())
    } else {
        Ok(command)
    }
}

fn named(name: &[u8]) -> Option<&'static Command> {
    COMMANDS
        .iter()
        .find(|command| name.eq_ignore_ascii_case(command.name.as_bytes()))
}

fn multi(call: &mut Call<'_>) -> Outcome {
    if call.session.transaction.is_some() {
        return Err("ERR MULTI calls can not be nested".into());
    }
    call.session.transaction = Some(Transaction::default());
    call.reply.ok();
    Ok(())
}

fn discard(call: &mut Call<'_>) -> Outcome {
    call.session
        .transaction
        .take()
        .ok_or("ERR DISCARD without MULTI")?;
    call.reply.ok();
    Ok(())
}

/// Runs what was queued. Other clients' commands come before or after, as this thread runs all of
/// them; only a key may expire between.
fn exec(exec: &mut Call<'_>) -> Outcome {
    let transaction = exec
        .session
        .transaction
        .take()
        .ok_or("ERR EXEC without MULTI")?;
    if transaction.has_failed {
        return Err("EXECABORT Transaction discarded because of previous errors.".into());
    }
    exec.reply.array(transaction.queue.len());
    for args in transaction.queue {
        let outcome = find(exec.session, &args)
            .and_then(|command| call(exec.session, command, args, exec.reply));
        outcome.unwrap_or_else(|refusal| exec.reply.error(&refusal));
    }
    Ok(())
}

/// COMMAND, and its COUNT and INFO. DOCS is refused: redis-cli takes its own instead.
fn list(call: &mut Call<'_>) -> Outcome {
    let word = call.args.get(1).map(|word| word.to_ascii_uppercase());
    let commands: Vec<_> = match (word.as_deref(), call.args.get(2..).unwrap_or_default()) {
        (Some(b"COUNT"), []) => {
            call.reply.integer(COMMANDS.len());
            return Ok(());
        }
        (None | Some(b"INFO"), []) => COMMANDS.iter().map(Some).collect(),
        (Some(b"INFO"), names) => names.iter().map(|name| named(name)).collect(),
        _ => return Err(unknown_subcommand(call)),
    };
    call.reply.array(commands.len());
    for command in commands {
        match command {
            Some(command) => describe(command, call.reply),
            None => call.reply.null(),
        }
    }
    Ok(())
}

/// Tells the command's name, how many words it takes, no flags, and which words are keys.
fn describe(command: &Command, reply: &mut Reply) {
    let least = *command.words.start() as i64;
    let is_exact = command.words.start() == command.words.end();
    let (first, last, step) = match command.flags & (KEY | KEYS | PAIRS) {
        KEY => (1, 1, 1),
        KEYS => (1, -1, 1),
        PAIRS => (1, -1, 2),
        _ => (0, 0, 0),
    };
    reply.array(6);
    reply.bulk(command.name);
    reply.integer(if is_exact { least } else { -least });
    reply.array(0);
    [first, last, step]
        .iter()
        .for_each(|place| reply.integer(place));
}

fn unknown_subcommand(call: &Call<'_>) -> Refusal {
    let name = call.name.to_uppercase();
    let word = shown(&call.args[1]);
    format!("ERR unknown subcommand '{word}'. Try {name} HELP.").into()
}

fn wrong_count(name: &str) -> Refusal {
    format!("ERR wrong number of arguments for '{name}' command").into()
}

/// Refuses a command by its name, in the words of Redis.
fn unknown(name: &[u8], rest: &[Vec<u8>]) -> Refusal {
    let mut text = format!(
        "ERR unknown command '{}', with args beginning with: ",
        shown(name)
    );
    for word in rest {
        if text.len() > 128 {
            break;
        }
        let _ = write!(text, "'{}' ", shown(word)); // A string takes everything.
    }
    text.into()
}

/// Returns a word as errors show it.
fn shown(word: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(&word[..word.len().min(128)])
}
