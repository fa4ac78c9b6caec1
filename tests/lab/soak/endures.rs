//! Endurance, briefly: `.ci/night soak` lets it run for an hour.

use std::process::Command;

/// The ticks are so short that the timer's own time goes through 2^30 of them after a second.
#[test]
fn with_faults_on_the_real_clock_each_entry_ends_once() {
    let program = env!("CARGO_BIN_EXE_endurance");
    let options = ["--seconds", "3", "--tick-ns", "1", "--slots", "500"];
    let output = Command::new(program).args(options).output().expect("it can be run");
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("clean: expired"), "{text}");
}
