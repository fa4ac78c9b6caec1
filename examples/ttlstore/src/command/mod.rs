//! The commands: how a request finds its command, and how that runs.

mod clients;
mod config;
mod connection;
mod expire;
mod failure;
mod info;
mod keys;
mod list;
mod numbers;
mod object;
mod options;
mod pubsub;
mod scan;
mod scripts;
mod strings;
mod table;
mod transactions;

use crate::client::Client;
use crate::deadline::Now;
use crate::request::Args;
use crate::shared::Shared;
use crate::slot::{Found, Slot};
use failure::{Failure, Outcome};
use std::sync::atomic::Ordering;
use table::{ALONE, AT_ONCE, COMMANDS, Command, ENDS, LISTENS, NEEDS_ROOM, REFUSED};
use tracing::warn;

/// A command that runs.
struct Call<'a> {
    shared: &'a Shared,
    client: &'a mut Client,
    args: Args<'a>,
    now: Now,
    /// In lower case; a subcommand's has its command's before a `|`.
    name: &'static str,
}

/// Runs a request, and writes its reply.
pub fn run(shared: &Shared, client: &mut Client, args: Args<'_>, now: Now) {
    let Some(word) = args.get(0) else { return };
    shared.commands.fetch_add(1, Ordering::Relaxed);
    let start = client.reply.bytes().len();
    let admitted = admit(shared, client, args, now);
    client.last = admitted.as_ref().map_or("", |command| command.name);
    let outcome = match admitted {
        Ok(command) if client.transaction.queued().is_some() && !command.is(AT_ONCE) => {
            transactions::queue(shared, client, args, command.is(NEEDS_ROOM))
        }
        Ok(command) => take_turn(command, &mut call(shared, client, args, now, command.name)),
        // What a browser sends whom somebody tricked into it: nothing of it is run.
        Err(_) if [&b"POST"[..], b"Host:"].iter().any(|it| word.eq_ignore_ascii_case(it)) => {
            warn!(client = client.seat.id, "somebody speaks HTTP: the connection is ended");
            client.closing = true;
            Ok(())
        }
        Err(failure) => Err(transactions::refuse(shared, client, word, failure)),
    };
    if let Err(failure) = outcome {
        client.reply.error(failure.text());
    }
    client.drop_unwanted(start);
}

fn call<'a>(
    shared: &'a Shared,
    client: &'a mut Client,
    args: Args<'a>,
    now: Now,
    name: &'static str,
) -> Call<'a> {
    Call { shared, client, args, now, name }
}

/// Finds the command of a request that may be run or queued.
fn admit(
    shared: &Shared,
    client: &Client,
    args: Args<'_>,
    now: Now,
) -> Result<&'static Command, Failure> {
    let command = find(args)?;
    if !command.takes(args.len()) {
        return Err(failure::wrong_arity(command.name));
    }
    if command.is(REFUSED) {
        return Err(scripts::refusal());
    }
    if needs_room(command, client) && !shared.memory.make_room(&shared.store, now.instant) {
        return Err(failure::no_memory());
    }
    if client.is_listening_only() && !command.is(LISTENS) {
        return Err(failure::listens_only(command.name));
    }
    Ok(command)
}

/// Returns whether a command is refused when there is no memory: in a transaction each, because to
/// queue it takes some, and then EXEC, if it runs one that needs room.
fn needs_room(command: &Command, client: &Client) -> bool {
    let is_queued = client.transaction.queued().is_some();
    command.is(NEEDS_ROOM)
        || is_queued && !command.is(ENDS)
        || command.name == "exec" && client.transaction.needs_room()
}

fn find(args: Args<'_>) -> Result<&'static Command, Failure> {
    let word = args.get(0).unwrap_or_default();
    let is = |command: &&Command| word.eq_ignore_ascii_case(command.name.as_bytes());
    let command = COMMANDS.iter().find(is).ok_or_else(|| failure::unknown(word, args))?;
    match args.get(1) {
        Some(word) if !command.subcommands.is_empty() => {
            command.subcommand(word).ok_or_else(|| failure::unknown_subcommand(command.name, word))
        }
        _ => Ok(command),
    }
}

/// Runs a command when no other may come between.
fn take_turn(command: &Command, call: &mut Call<'_>) -> Outcome {
    if command.is(ALONE) {
        let _turn = call.shared.turns.write();
        (command.run)(call)
    } else {
        let _turn = call.shared.turns.read();
        (command.run)(call)
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
