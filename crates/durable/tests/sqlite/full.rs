//! A disk that is full.

use crate::{HOUR, open};
use std::path::Path;
use std::process::Command;
use tickwheel_durable::{Entry, Error};

const FULL: &str = "TICKWHEEL_FULL_FOLDER";

/// Runs in a process that has a disk of half a megabyte to itself.
#[tokio::test]
async fn on_a_full_disk() {
    let Some(folder) = std::env::var_os(FULL) else {
        return;
    };
    let (node, _calls) = open(&Path::new(&folder).join("timers")).await.unwrap();
    let mut last = 0;
    let mut refused = 0;
    for number in 0..200 {
        let entry = Entry::keyed(number.to_string(), HOUR, [0; 10_000]);
        match node.schedule(entry).await {
            Ok(_) => last = number,
            Err(Error::Unavailable(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        let there = node.get(&number.to_string()).await.unwrap().is_some();
        assert_eq!(there, last == number, "{number}");
    }
    assert!(last > 10 && refused > 100, "{last}, {refused}");
    println!("held");
}

#[test]
fn a_full_disk_does_nothing_that_it_did_not_answer() {
    let folder = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=512k none \"$0\" || exit 77
        exec \"$1\" --exact full::on_a_full_disk --nocapture";
    let mut child = Command::new("unshare");
    child.args(["--map-root-user", "--mount", "sh", "-c", script]);
    child.arg(folder.path());
    child.arg(std::env::current_exe().unwrap());
    let output = child.env(FULL, folder.path()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    if output.status.code() == Some(0) {
        assert!(told.contains("held"), "{told}");
        return;
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let may_mount = output.status.code() == Some(101) || std::env::var_os("CI").is_some();
    assert!(!may_mount, "{told}{errors}");
    eprintln!("no disk can be made here: not tested: {errors}");
}
