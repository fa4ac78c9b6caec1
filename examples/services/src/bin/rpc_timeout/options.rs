//! The command line.

use clap::{Parser, value_parser};

/// Calls to slow, silent, stuck and dead servers over TCP: each ends exactly once, and in time.
///
/// First it shows each way in which a call ends, one after the other. Then callers call as fast as
/// they can; of 100 calls one is never answered, one is answered too late, and one is cancelled.
/// The exit status is 1 if a call ended in a wrong way or too early, or was left over.
#[derive(Clone, Debug, Parser)]
#[command(name = "rpc_timeout", verbatim_doc_comment)]
pub(crate) struct Options {
    /// How long the callers call
    #[arg(long, value_name = "S", default_value_t = 10)]
    #[arg(value_parser = value_parser!(u32).range(1..=86_400))]
    pub(crate) seconds: u32,

    /// Callers, each with one call outstanding at any time
    #[arg(long, value_name = "N", default_value_t = 1000)]
    #[arg(value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub(crate) callers: u32,

    /// Be brief: 100 callers for a second
    #[arg(long)]
    check: bool,
}

impl Options {
    /// Parses the options of this process, which ends here if they make no sense.
    pub(crate) fn from_command_line() -> Self {
        let mut options = Options::parse();
        if options.check {
            (options.seconds, options.callers) = (1, 100);
        }
        options
    }
}
