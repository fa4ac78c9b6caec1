//! The table of commands: what each is called, how many words it takes, and what it does.

use super::failure::Outcome;
use super::{
    Call, clients, config, connection, expire, info, keys, list, numbers, object, pubsub, scan,
    scripts, strings, transactions,
};

/// A command, or a subcommand.
pub(super) struct Command {
    pub(super) name: &'static str,
    /// How many words it takes, its name included; if negative, at least so many.
    pub(super) arity: i64,
    pub(super) flags: u8,
    /// The first word that is a key, the last, and the step between; a negative last counts from
    /// the end.
    pub(super) keys: (i64, i64, i64),
    pub(super) run: fn(&mut Call<'_>) -> Outcome,
    pub(super) subcommands: &'static [Command],
}

/// It changes keys.
pub(super) const WRITES: u8 = 1;
/// It may need memory, and is refused when there is none.
pub(super) const NEEDS_ROOM: u8 = 2;
/// It is one step: no other command comes between.
pub(super) const ALONE: u8 = 4;
/// It is never queued.
pub(super) const AT_ONCE: u8 = 8;
/// Subscribers may use it.
pub(super) const LISTENS: u8 = 16;
/// There is none here, and clients should hear why.
pub(super) const REFUSED: u8 = 32;

/// It may end a transaction, for which there is always room.
pub(super) const ENDS: u8 = 64;

const SETS: u8 = WRITES | NEEDS_ROOM;
const NO_KEY: (i64, i64, i64) = (0, 0, 0);
const ONE_KEY: (i64, i64, i64) = (1, 1, 1);
const TWO_KEYS: (i64, i64, i64) = (1, 2, 1);
const ALL_KEYS: (i64, i64, i64) = (1, -1, 1);
const PAIRS: (i64, i64, i64) = (1, -1, 2);

type Run = fn(&mut Call<'_>) -> Outcome;

const fn command(
    name: &'static str,
    arity: i64,
    flags: u8,
    keys: (i64, i64, i64),
    run: Run,
) -> Command {
    Command { name, arity, flags, keys, run, subcommands: &[] }
}

const fn family(
    name: &'static str,
    arity: i64,
    run: Run,
    subcommands: &'static [Command],
) -> Command {
    Command { name, arity, flags: 0, keys: NO_KEY, run, subcommands }
}

/// The most frequent first: they are looked for in this order.
pub(super) static COMMANDS: [Command; 69] = [
    command("get", 2, 0, ONE_KEY, strings::get),
    command("set", -3, SETS, ONE_KEY, strings::set),
    command("ping", -1, LISTENS, NO_KEY, connection::ping),
    command("incr", 2, SETS, ONE_KEY, numbers::incr),
    command("mget", -2, 0, ALL_KEYS, strings::mget),
    command("del", -2, WRITES, ALL_KEYS, keys::del),
    command("multi", 1, AT_ONCE, NO_KEY, transactions::multi),
    command("exec", 1, AT_ONCE | ALONE | ENDS, NO_KEY, transactions::exec),
    command("setex", 4, SETS, ONE_KEY, strings::setex),
    command("expire", -3, WRITES, ONE_KEY, expire::expire),
    command("pexpire", -3, WRITES, ONE_KEY, expire::pexpire),
    command("ttl", 2, 0, ONE_KEY, expire::ttl),
    command("pttl", 2, 0, ONE_KEY, expire::pttl),
    command("exists", -2, 0, ALL_KEYS, keys::exists),
    command("getex", -2, WRITES, ONE_KEY, strings::getex),
    command("getdel", 2, WRITES, ONE_KEY, strings::getdel),
    command("psetex", 4, SETS, ONE_KEY, strings::psetex),
    command("setnx", 3, SETS, ONE_KEY, strings::setnx),
    command("getset", 3, SETS, ONE_KEY, strings::getset),
    command("mset", -3, SETS | ALONE, PAIRS, strings::mset),
    command("msetnx", -3, SETS | ALONE, PAIRS, strings::msetnx),
    command("append", 3, SETS, ONE_KEY, strings::append),
    command("strlen", 2, 0, ONE_KEY, strings::strlen),
    command("decr", 2, SETS, ONE_KEY, numbers::decr),
    command("incrby", 3, SETS, ONE_KEY, numbers::incrby),
    command("decrby", 3, SETS, ONE_KEY, numbers::decrby),
    command("incrbyfloat", 3, SETS, ONE_KEY, numbers::incrbyfloat),
    command("unlink", -2, WRITES, ALL_KEYS, keys::del),
    command("touch", -2, 0, ALL_KEYS, keys::exists),
    command("expireat", -3, WRITES, ONE_KEY, expire::expireat),
    command("pexpireat", -3, WRITES, ONE_KEY, expire::pexpireat),
    command("expiretime", 2, 0, ONE_KEY, expire::expiretime),
    command("pexpiretime", 2, 0, ONE_KEY, expire::pexpiretime),
    command("persist", 2, WRITES, ONE_KEY, expire::persist),
    command("type", 2, 0, ONE_KEY, keys::type_of),
    command("rename", 3, WRITES | ALONE, TWO_KEYS, keys::rename),
    command("renamenx", 3, WRITES | ALONE, TWO_KEYS, keys::renamenx),
    command("randomkey", 1, 0, NO_KEY, scan::randomkey),
    command("scan", -2, 0, NO_KEY, scan::scan),
    command("keys", 2, 0, NO_KEY, scan::keys),
    command("dbsize", 1, 0, NO_KEY, keys::dbsize),
    command("flushall", -1, WRITES | ALONE, NO_KEY, keys::flush),
    command("flushdb", -1, WRITES | ALONE, NO_KEY, keys::flush),
    command("watch", -2, AT_ONCE, ALL_KEYS, transactions::watch),
    command("unwatch", 1, 0, NO_KEY, transactions::unwatch),
    command("discard", 1, AT_ONCE | ENDS, NO_KEY, transactions::discard),
    command("subscribe", -2, LISTENS, NO_KEY, pubsub::subscribe),
    command("unsubscribe", -1, LISTENS, NO_KEY, pubsub::unsubscribe),
    command("psubscribe", -2, LISTENS, NO_KEY, pubsub::psubscribe),
    command("punsubscribe", -1, LISTENS, NO_KEY, pubsub::punsubscribe),
    command("hello", -1, 0, NO_KEY, connection::hello),
    command("auth", -2, 0, NO_KEY, connection::auth),
    command("select", 2, 0, NO_KEY, connection::select),
    command("echo", 2, 0, NO_KEY, connection::echo),
    command("info", -1, 0, NO_KEY, info::info),
    command("reset", 1, AT_ONCE | LISTENS | ENDS, NO_KEY, connection::reset),
    command("quit", -1, AT_ONCE | LISTENS | ENDS, NO_KEY, connection::quit),
    family("client", -2, clients::id, &CLIENT),
    family("config", -2, config::get, &CONFIG),
    family("object", -2, object::encoding, &OBJECT),
    family("command", -1, list::info, &COMMAND),
    command("evalsha", -3, 0, NO_KEY, scripts::evalsha),
    command("evalsha_ro", -3, 0, NO_KEY, scripts::evalsha),
    command("eval", -3, REFUSED, NO_KEY, scripts::refused),
    command("eval_ro", -3, REFUSED, NO_KEY, scripts::refused),
    command("script", -2, REFUSED, NO_KEY, scripts::refused),
    command("fcall", -3, REFUSED, NO_KEY, scripts::refused),
    command("fcall_ro", -3, REFUSED, NO_KEY, scripts::refused),
    command("function", -2, REFUSED, NO_KEY, scripts::refused),
];

const CLIENT: [Command; 10] = [
    command("client|id", 2, 0, NO_KEY, clients::id),
    command("client|getname", 2, 0, NO_KEY, clients::getname),
    command("client|setname", 3, 0, NO_KEY, clients::setname),
    command("client|setinfo", 4, 0, NO_KEY, clients::setinfo),
    command("client|info", 2, 0, NO_KEY, clients::info),
    command("client|list", -2, 0, NO_KEY, clients::list),
    command("client|kill", -3, 0, NO_KEY, clients::kill),
    command("client|reply", 3, 0, NO_KEY, clients::reply),
    command("client|unblock", -3, 0, NO_KEY, clients::unblock),
    command("client|help", 2, 0, NO_KEY, clients::help),
];

const CONFIG: [Command; 5] = [
    command("config|get", -3, 0, NO_KEY, config::get),
    command("config|set", -4, 0, NO_KEY, config::set),
    command("config|resetstat", 2, 0, NO_KEY, config::resetstat),
    command("config|rewrite", 2, 0, NO_KEY, config::rewrite),
    command("config|help", 2, 0, NO_KEY, config::help),
];

const OBJECT: [Command; 5] = [
    command("object|encoding", 3, 0, (2, 2, 1), object::encoding),
    command("object|refcount", 3, 0, (2, 2, 1), object::refcount),
    command("object|idletime", 3, 0, (2, 2, 1), object::idletime),
    command("object|freq", 3, 0, (2, 2, 1), object::freq),
    command("object|help", 2, 0, NO_KEY, object::help),
];

const COMMAND: [Command; 5] = [
    command("command|count", 2, 0, NO_KEY, list::count),
    command("command|docs", -2, 0, NO_KEY, list::docs),
    command("command|info", -2, 0, NO_KEY, list::info),
    command("command|list", -2, 0, NO_KEY, list::names),
    command("command|help", 2, 0, NO_KEY, list::help),
];

impl Command {
    pub(super) fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn takes(&self, words: usize) -> bool {
        let arity = usize::try_from(self.arity.unsigned_abs()).unwrap_or(usize::MAX);
        if self.arity < 0 { words >= arity } else { words == arity }
    }

    pub(super) fn subcommand(&self, word: &[u8]) -> Option<&'static Command> {
        self.subcommands.iter().find(|command| {
            let (_, name) = command.name.split_once('|').unwrap_or_default();
            word.eq_ignore_ascii_case(name.as_bytes())
        })
    }
}
