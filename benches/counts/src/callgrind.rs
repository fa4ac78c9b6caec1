//! Runs a work under callgrind.

use crate::report::Counts;
use crate::works::Work;
use std::error::Error;
use std::fs;
use std::process::Command;
use std::{env, str};

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
