//! What was counted, under callgrind, beside the baseline.

use crate::works::Work;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::error::Error;
use std::process::Command;
use std::{env, fs, str};

/// Where the baseline is, and what writes it.
const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/baseline.json");
const WRITE: &str = "cargo run --profile counts -p tickwheel-counts -- --write";
/// By so much a count may differ from the baseline.
const MARGIN: f64 = 0.02;

/// Per operation.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Counts {
    instructions: f64,
    locked: f64,
}

impl Counts {
    pub fn per(operations: u64, instructions: f64, locked: f64) -> Self {
        let per = |total: f64| (total / operations as f64 * 100.0).round() / 100.0;
        Counts { instructions: per(instructions), locked: per(locked) }
    }
}

#[derive(Serialize, Deserialize)]
pub struct Report {
    /// The compiler, whose next version will make other instructions.
    built_by: String,
    works: BTreeMap<String, Counts>,
}

impl Report {
    pub fn new(works: BTreeMap<String, Counts>) -> Self {
        Report { built_by: env!("BUILT_BY").to_owned(), works }
    }

    pub fn baseline() -> Result<Self, Box<dyn Error>> {
        let text = fs::read_to_string(BASELINE).map_err(|error| format!("{BASELINE}: {error}"))?;
        Ok(serde_json::from_str(&text)?)
    }

    pub fn write(&self) -> Result<(), Box<dyn Error>> {
        Ok(fs::write(BASELINE, serde_json::to_string_pretty(self)? + "\n")?)
    }

    pub fn print(&self) {
        println!("| work | instructions | locked |\n|---|---|---|");
        for (work, Counts { instructions, locked }) in &self.works {
            println!("| {work} | {instructions:.1} | {locked:.2} |");
        }
        println!("\nper operation; {}", self.built_by);
    }

    /// Prints the differences from the baseline. Returns whether no count has risen.
    pub fn check(&self, baseline: &Report) -> bool {
        if self.built_by != baseline.built_by {
            println!("Not compared: {} made the baseline. To renew it: {WRITE}", baseline.built_by);
            return true;
        }
        let (mut rises, mut falls) = (Vec::new(), Vec::new());
        for (work, now) in &self.works {
            let Some(before) = baseline.works.get(work) else {
                rises.push(format!("{work} is not in the baseline"));
                continue;
            };
            for (what, before, now) in [
                ("instructions", before.instructions, now.instructions),
                ("locked instructions", before.locked, now.locked),
            ] {
                let change = now / before - 1.0;
                let line = format!("{work}: {before} -> {now} {what}, {:+.1} %", 100.0 * change);
                if change > MARGIN {
                    rises.push(line);
                } else if change < -MARGIN {
                    falls.push(line);
                }
            }
        }
        if !falls.is_empty() {
            println!("Fell; the baseline should know ({WRITE}):\n  {}", falls.join("\n  "));
        }
        if !rises.is_empty() {
            println!("ROSE by more than {} %:\n  {}", 100.0 * MARGIN, rises.join("\n  "));
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
        .args(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"])
        // Bus events are locked instructions, `xchg` with memory included.
        .arg("--collect-bus=yes")
        .arg("--toggle-collect=*work*measured*")
        .arg(env::current_exe()?)
        .args(["--run", &work.name()])
        .env_clear()
        .envs(env::var_os("PATH").map(|path| ("PATH", path)))
        .output()
        .map_err(|error| format!("taskset: {error}"))?;
    let printed = str::from_utf8(&output.stderr)?;
    let collected = printed.lines().find_map(|line| line.split_once("Collected : "));
    let (true, Some((_, collected))) = (output.status.success(), collected) else {
        return Err(format!("valgrind is needed, and has to run this program:\n{printed}").into());
    };
    let totals: Vec<f64> = collected.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    match totals[..] {
        [instructions, locked] if instructions > 0.0 => {
            Ok(Counts::per(work.count(), instructions, locked))
        }
        _ => Err(format!("callgrind counted nothing of what is measured:\n{printed}").into()),
    }
}

/// Returns the first core that this process may use.
fn first_core() -> Result<String, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let first = list.and_then(|list| list.trim().split([',', '-']).next());
    Ok(first.ok_or("Linux did not say which cores may be used")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(built_by: &str, instructions: f64, locked: f64) -> Report {
        let works = [("W1".to_owned(), Counts { instructions, locked })].into();
        Report { built_by: built_by.to_owned(), works }
    }

    #[test]
    fn a_rise_of_either_count_fails_and_nothing_else_does() {
        let baseline = report("a", 500.0, 4.0);
        let holds = |built_by, instructions, locked| {
            report(built_by, instructions, locked).check(&baseline)
        };
        assert!(holds("a", 500.0, 4.0) && holds("a", 509.0, 4.0) && holds("a", 400.0, 3.0));
        assert!(!holds("a", 511.0, 4.0) && !holds("a", 500.0, 4.1) && !holds("a", 400.0, 4.1));
        assert!(holds("b", 999.0, 9.0), "another compiler's counts say nothing");
        let missing = Report { works: BTreeMap::new(), ..report("a", 0.0, 0.0) };
        assert!(!report("a", 500.0, 4.0).check(&missing));
    }
}
