//! The command line.

use crate::system::Kind;
use clap::{Parser, value_parser};
use std::path::PathBuf;

/// Up to ten times more than can be done, and what gives way.
///
/// The exit status is 1 if an entry was early, lost, or ended twice.
#[derive(Clone, Debug, Parser)]
#[command(name = "overload")]
pub(crate) struct Options {
    /// How long each load lasts
    #[arg(long, value_name = "S", default_value_t = 3)]
    #[arg(value_parser = value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: u64,

    /// Only half of the load, ten times and all; fail if anything gives way that never may
    #[arg(long)]
    pub(crate) check: bool,

    /// Draw lateness and memory against load into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// Print one JSON array instead of the table
    #[arg(long)]
    pub(crate) json: bool,

    /// One measurement, in this process
    #[arg(long, hide = true, value_parser = only)]
    pub(crate) only: Option<(Kind, Load)>,
}

/// How much is added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Load {
    /// So many times what can be served.
    Times(f64),
    /// As much as the threads can.
    FlatOut,
}

impl Load {
    pub(crate) fn argument(self) -> String {
        match self {
            Load::Times(times) => times.to_string(),
            Load::FlatOut => "all".to_owned(),
        }
    }
}

fn only(text: &str) -> Result<(Kind, Load), String> {
    let (name, load) = text.split_once(':').ok_or("no load")?;
    let named = |kind: &Kind| format!("{kind:?}") == name;
    let kind = Kind::ALL.into_iter().find(named).ok_or("no such system")?;
    if load == "all" {
        return Ok((kind, Load::FlatOut));
    }
    let times = load.parse().map_err(|_| "the load is not a number".to_owned())?;
    Ok((kind, Load::Times(times)))
}

impl Options {
    pub(crate) fn from_command_line() -> Self {
        Options::parse()
    }

    pub(crate) fn loads(&self) -> Vec<Load> {
        let times: &[f64] =
            if self.check { &[0.5, 10.0] } else { &[0.25, 0.5, 0.8, 1.25, 2.0, 5.0, 10.0] };
        times.iter().map(|times| Load::Times(*times)).chain([Load::FlatOut]).collect()
    }
}
