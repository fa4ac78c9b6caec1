//! Errors, in Redis' words.

use crate::request::Args;
use crate::slot::Full;
use std::borrow::Cow;

/// An error, as the client reads it.
pub(super) struct Failure(Cow<'static, str>);

pub(super) type Outcome = Result<(), Failure>;

impl Failure {
    pub(super) fn new(text: impl Into<Cow<'static, str>>) -> Self {
        Failure(text.into())
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

impl From<Full> for Failure {
    fn from(_: Full) -> Self {
        Failure::new("ERR no room for more keys")
    }
}

pub(super) fn syntax_error() -> Failure {
    Failure::new("ERR syntax error")
}

pub(super) fn not_an_integer() -> Failure {
    Failure::new("ERR value is not an integer or out of range")
}

pub(super) fn no_such_key() -> Failure {
    Failure::new("ERR no such key")
}

pub(super) fn too_long() -> Failure {
    Failure::new("ERR string exceeds maximum allowed size (proto-max-bulk-len)")
}

pub(super) fn no_memory() -> Failure {
    Failure::new("OOM command not allowed when used memory > 'maxmemory'.")
}

pub(super) fn listens_only(name: &str) -> Failure {
    let allowed = "(P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET";
    let text = format!("ERR Can't execute '{name}': only {allowed} are allowed in this context");
    Failure::new(text)
}

pub(super) fn wrong_arity(name: &str) -> Failure {
    Failure::new(format!("ERR wrong number of arguments for '{name}' command"))
}

pub(super) fn unknown_subcommand(name: &str, word: &[u8]) -> Failure {
    let (word, name) = (shown(word, 128), name.to_uppercase());
    Failure::new(format!("ERR unknown subcommand '{word}'. Try {name} HELP."))
}

/// Tells the beginning of what came, as Redis does.
pub(super) fn unknown(word: &[u8], args: Args<'_>) -> Failure {
    let mut beginning = String::new();
    for arg in args.from(1) {
        if beginning.len() >= 128 {
            break;
        }
        beginning += &format!("'{}' ", shown(arg, 128 - beginning.len()));
    }
    let name = shown(word, 128);
    Failure::new(format!("ERR unknown command '{name}', with args beginning with: {beginning}"))
}

pub(super) fn shown(word: &[u8], max_len: usize) -> Cow<'_, str> {
    String::from_utf8_lossy(&word[..word.len().min(max_len)])
}
