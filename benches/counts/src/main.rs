//! Counts the instructions that single operations take on one thread, the locked ones among them,
//! and what they miss in a model of a cache: what no load of the machine changes. For this it runs
//! itself under callgrind. `docs/BENCHMARKS.md` says what the counts mean.

mod report;
mod works;

// The works are the peers' benchmark's own.
#[path = "../../peers/src/keyed.rs"]
#[expect(dead_code, reason = "one thread is counted, and no K_touch")]
mod keyed;
#[path = "../../peers/src/operations.rs"]
#[expect(dead_code, reason = "P1 is counted on another clock")]
mod operations;
#[path = "../../peers/src/contenders/tickwheel.rs"]
mod ours;
#[path = "../../peers/src/work.rs"]
#[expect(dead_code, reason = "touch is not counted")]
mod work;

use clap::{Parser, ValueEnum};
use report::Report;
use std::error::Error;
use std::process::ExitCode;
use std::thread;
use works::Work;

#[derive(Parser)]
#[command(about = "Counts instructions, locked ones, and cache misses, under callgrind")]
struct Options {
    /// Compare with this profile's baseline, and fail if a count has risen by more than 2 %, or
    /// misses by more than 5 %.
    #[arg(long, conflicts_with = "write")]
    check: bool,
    /// Make these counts the baseline of this profile.
    #[arg(long, conflicts_with = "only")]
    write: bool,
    /// Only these works.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Work>,
    /// Do a work instead of counting it: what callgrind runs.
    #[arg(long, value_name = "WORK", hide = true)]
    run: Option<Work>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(work) = options.run {
        // On a thread of its own, as in a process with a reaper: glibc's allocator takes its locks,
        // and the stack is where it is whatever the environment.
        thread::spawn(move || work.run()).join().expect("no panic");
        return ExitCode::SUCCESS;
    }
    match count(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Counts, and prints, writes or checks the counts. Returns whether no count has risen.
fn count(options: &Options) -> Result<bool, Box<dyn Error>> {
    let all = if options.only.is_empty() {
        Work::value_variants()
    } else {
        &options.only
    };
    let counts = all
        .iter()
        .map(|&work| Ok((work.name(), report::count(work)?)));
    let report = Report::new(counts.collect::<Result<_, Box<dyn Error>>>()?);
    report.print()?;
    if options.write {
        report.write()?;
        return Ok(true);
    }
    Ok(!options.check || report.check()?)
}
