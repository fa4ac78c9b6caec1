//! Overload: up to ten times more than can be done, and what gives way.
//!
//! ```text
//! cargo run --release -p demos --bin overload -- --svg docs/overload.svg
//! cargo run --release -p demos --bin overload -- --seconds 1 --check
//! ```
//!
//! What expires is handed to a service that finishes 20,000 a second, and no more. The load is a
//! share of that, up to ten times as much, and at last as much as the threads can add. The service
//! is run in place, on the reaper, or by a worker with a bounded queue; what expires are timers, or
//! operations of a purgatory. At most 20,000 may be pending. Then the load falls to a half, and it
//! is measured how long lateness lasts. Every entry is in a ledger. Each measurement is a process
//! of its own, because memory that was used once is seldom given back.

mod adder;
mod measure;
mod options;
mod picture;
mod report;
mod service;
mod system;

use demos::progress::Progress;
use options::{Load, Options};
use report::{Report, Row};
use std::error::Error;
use std::io::Write;
use std::process::{Command, ExitCode, Stdio};
use system::Kind;

fn main() -> ExitCode {
    let options = Options::from_command_line();
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("overload: {error}");
            ExitCode::from(2)
        }
    }
}

/// Returns whether nothing was wrong.
fn run(options: &Options) -> Result<bool, Box<dyn Error>> {
    if let Some(only) = options.only {
        let row = measure::measure(options, only.0, only.1)?;
        // The parent, which waits for it, may be gone.
        let _ = writeln!(std::io::stdout(), "{}", serde_json::to_string(&row)?);
        return Ok(true);
    }
    let (progress, mut rows) = (Progress::default(), Vec::new());
    for kind in Kind::ALL {
        for load in options.loads() {
            progress.show(&format!("{kind:?} at {load:?}"));
            rows.push(in_a_process(options, kind, load)?);
        }
    }
    progress.end();
    let report = Report(rows);
    if let Some(path) = &options.svg {
        picture::draw(path, &report)?;
    }
    let text = if options.json { serde_json::to_string(&report)? } else { report.to_string() };
    let _ = writeln!(std::io::stdout(), "{text}");
    let complaints = if options.check { report.complaints() } else { report.wrong() };
    complaints.iter().for_each(|complaint| eprintln!("overload: {complaint}"));
    Ok(complaints.is_empty())
}

fn in_a_process(options: &Options, kind: Kind, load: Load) -> Result<Row, Box<dyn Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--seconds").arg(options.seconds.to_string());
    command.arg("--only").arg(format!("{kind:?}:{}", load.argument()));
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("{kind:?} at {load:?}: {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
