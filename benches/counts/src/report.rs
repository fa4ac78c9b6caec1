//! What was counted, under callgrind, beside the baseline.

use crate::works::{GROWTH, Work};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::{env, fs, str};

/// Where the baseline is, and what writes it instead of checking it.
const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/baseline.json");
const WRITE: &str = "the same command with --write";
/// By so much instructions may differ from the baseline; and misses, which depend a little on what
/// lies beside what.
const MARGIN: f64 = 0.02;
const MARGIN_OF_MISSES: f64 = 0.05;
/// How many times the instructions beside ten thousand others those beside a million may be.
const GROWS: f64 = 1.1;

/// Per operation.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Counts {
    instructions: f64,
    /// Those among them that lock a cache line.
    locked: f64,
    /// Data that was not in the modelled cache.
    misses: f64,
}

#[derive(Serialize, Deserialize)]
pub struct Report {
    /// The compiler, whose next version will make other instructions.
    built_by: String,
    works: BTreeMap<String, Counts>,
}

/// What was counted in each profile.
type Baseline = BTreeMap<String, Report>;

fn baseline() -> Result<Baseline, Box<dyn Error>> {
    let text = fs::read_to_string(BASELINE).map_err(|error| format!("{BASELINE}: {error}"))?;
    Ok(serde_json::from_str(&text)?)
}

/// Returns the profile that this program was built with: cargo names the folder by it.
fn profile() -> Result<String, Box<dyn Error>> {
    let program = env::current_exe()?;
    let folder = program
        .parent()
        .and_then(Path::file_name)
        .and_then(OsStr::to_str);
    Ok(folder
        .ok_or("the program is in no folder of cargo's")?
        .to_owned())
}

impl Report {
    pub fn new(works: BTreeMap<String, Counts>) -> Self {
        Report {
            built_by: env!("BUILT_BY").to_owned(),
            works,
        }
    }

    pub fn write(self) -> Result<(), Box<dyn Error>> {
        let mut baseline = baseline()?;
        baseline.insert(profile()?, self);
        Ok(fs::write(
            BASELINE,
            serde_json::to_string_pretty(&baseline)? + "\n",
        )?)
    }

    pub fn print(&self) -> Result<(), Box<dyn Error>> {
        println!("| work | instructions | locked | misses |\n|---|---|---|---|");
        for (
            work,
            Counts {
                instructions,
                locked,
                misses,
            },
        ) in &self.works
        {
            println!("| {work} | {instructions:.1} | {locked:.2} | {misses:.2} |");
        }
        println!("\nper operation; profile {}; {}", profile()?, self.built_by);
        Ok(())
    }

    /// Prints the differences from the baseline, and what grows with the number of timers. Returns
    /// whether no count has risen, and nothing grows.
    pub fn check(&self) -> Result<bool, Box<dyn Error>> {
        let profile = profile()?;
        let baseline = baseline()?.remove(&profile);
        let holds = self.holds(&baseline.ok_or(format!("{profile} is not in {BASELINE}"))?);
        Ok(self.is_constant() && holds)
    }

    fn is_constant(&self) -> bool {
        let mut constant = true;
        for [few, many] in GROWTH {
            // Not there if only some works are counted.
            let [Some(a), Some(b)] = [few, many].map(|work| self.works.get(work)) else {
                continue;
            };
            let times = b.instructions / a.instructions;
            if times > GROWS {
                println!("GROWS: {many} takes {times:.2} times the instructions of {few}");
                constant = false;
            }
        }
        constant
    }

    fn holds(&self, baseline: &Report) -> bool {
        if self.built_by != baseline.built_by {
            println!(
                "Not compared: {} made the baseline; {WRITE} renews it.",
                baseline.built_by
            );
            return true;
        }
        let mut rises = Vec::new();
        let mut falls = Vec::new();
        for (work, now) in &self.works {
            let Some(before) = baseline.works.get(work) else {
                rises.push(format!("{work} is not in the baseline"));
                continue;
            };
            for (what, margin, before, now) in [
                (
                    "instructions",
                    MARGIN,
                    before.instructions,
                    now.instructions,
                ),
                ("locked instructions", MARGIN, before.locked, now.locked),
                ("misses", MARGIN_OF_MISSES, before.misses, now.misses),
            ] {
                // Next to nothing may double.
                let change = (now - before) / before.max(1.0);
                let line = format!("{work}: {before} -> {now} {what}, {:+.1} %", 100.0 * change);
                if change > margin {
                    rises.push(line);
                } else if change < -margin {
                    falls.push(line);
                }
            }
        }
        if !falls.is_empty() {
            println!(
                "Fell; the baseline should know ({WRITE}):\n  {}",
                falls.join("\n  ")
            );
        }
        if !rises.is_empty() {
            println!("ROSE:\n  {}", rises.join("\n  "));
            println!("If it is worth it, commit a new baseline and say why: {WRITE}");
        }
        rises.is_empty()
    }
}

/// Returns the counts of one execution of a work, as this program counts them under callgrind.
pub fn count(work: Work) -> Result<Counts, Box<dyn Error>> {
    // Shards, and tables with them, are as many as there are cores: one, on every machine.
    let output = Command::new("taskset")
        .args(["--cpu-list", &first_core()?])
        .args([
            "valgrind",
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
        ])
        // Bus events are locked instructions, `xchg` with memory included.
        .args(["--collect-bus=yes", "--cache-sim=yes"])
        // Bytes, ways and bytes of a line; unless they are given, they are this machine's.
        .args(["--I1=32768,8,64", "--D1=32768,8,64", "--LL=524288,8,64"])
        .arg(format!("--toggle-collect={}", work.counted()))
        .arg(env::current_exe()?)
        .args(["--run", &work.name()])
        .env_clear()
        .envs(env::var_os("PATH").map(|path| ("PATH", path)))
        .output()
        .map_err(|error| format!("taskset: {error}"))?;
    let printed = str::from_utf8(&output.stderr)?;
    match counted(printed, work.count()) {
        Some(counts) if output.status.success() && counts.instructions > 0.0 => Ok(counts),
        _ => Err(format!("valgrind has to run this program, and to count:\n{printed}").into()),
    }
}

/// Returns what callgrind has printed, per operation.
fn counted(printed: &str, operations: u64) -> Option<Counts> {
    let after = |name| {
        printed
            .lines()
            .find_map(|line| Some(line.split_once(name)?.1.split(' ')))
    };
    let totals: BTreeMap<_, _> = after("Events    : ")?.zip(after("Collected : ")?).collect();
    let per = |events: &[&str]| {
        let totals = events
            .iter()
            .map(|event| totals.get(event)?.parse::<f64>().ok());
        Some((totals.sum::<Option<f64>>()? / operations as f64 * 100.0).round() / 100.0)
    };
    let instructions = per(&["Ir"])?;
    let locked = per(&["Ge"])?;
    Some(Counts {
        instructions,
        locked,
        misses: per(&["DLmr", "DLmw"])?,
    })
}

/// Returns the first core that this process may use.
fn first_core() -> Result<String, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let first = list.and_then(|list| list.trim().split([',', '-']).next());
    Ok(first
        .ok_or("Linux did not say which cores may be used")?
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(built_by: &str, instructions: f64, locked: f64, misses: f64) -> Report {
        let works = [(
            "W1".to_owned(),
            Counts {
                instructions,
                locked,
                misses,
            },
        )]
        .into();
        Report {
            built_by: built_by.to_owned(),
            works,
        }
    }

    #[test]
    fn a_rise_of_any_count_fails_and_nothing_else_does() {
        let baseline = report("a", 500.0, 4.0, 0.5);
        for (built_by, instructions, locked, misses, holds) in [
            ("a", 500.0, 4.0, 0.5, true),
            ("a", 509.0, 4.0, 0.54, true),
            ("a", 400.0, 3.0, 0.0, true),
            ("a", 511.0, 4.0, 0.5, false),
            ("a", 500.0, 4.1, 0.5, false),
            ("a", 500.0, 4.0, 0.56, false),
            ("a", 400.0, 4.1, 0.4, false),
            // Another compiler's counts say nothing.
            ("b", 999.0, 9.0, 9.0, true),
        ] {
            let now = report(built_by, instructions, locked, misses);
            assert_eq!(
                now.holds(&baseline),
                holds,
                "{built_by} {instructions} {locked} {misses}"
            );
        }
        let missing = Report {
            works: BTreeMap::new(),
            ..report("a", 0.0, 0.0, 0.0)
        };
        assert!(!report("a", 500.0, 4.0, 0.5).holds(&missing));
    }

    #[test]
    fn what_grows_with_the_number_of_timers_fails() {
        let holds = |many: f64| {
            let [few, many] = [("W2_10k", 500.0), ("W2_1M", many)].map(|(work, instructions)| {
                (
                    work.to_owned(),
                    Counts {
                        instructions,
                        locked: 4.0,
                        misses: 0.5,
                    },
                )
            });
            Report {
                built_by: "a".to_owned(),
                works: [few, many].into(),
            }
            .is_constant()
        };
        assert!(holds(549.0) && !holds(551.0));
    }
}
