//! The server of these tests, which ends with its program.

use crate::server::{self, Server, connect};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SERVER: &str = "TICKWHEEL_SERVER";

/// Runs in a process that is ended, and has a server.
#[test]
fn child() {
    if std::env::var_os(SERVER).is_none() {
        return;
    }
    let server = Server::start(&["fsync=off"]).expect("PostgreSQL is installed");
    println!("port {}", server.config().get_ports()[0]);
    let _ = std::io::stdin().read_line(&mut String::new()); // Ends with the test.
}

/// Seen to fail: the server went on, and its folder stayed.
#[tokio::test]
async fn a_server_ends_with_its_program_however_that_ends() {
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "server_ends::child", "--nocapture"])
            .env(SERVER, "");
        let mut child = child
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map(Result::unwrap);
        let port = told
            .find_map(|line| line.split_once("port ")?.1.parse().ok())
            .unwrap();
        let client = connect(&server::config(port)).await.unwrap();
        let data = client.query_one("SHOW data_directory", &[]).await.unwrap();
        let folder = Path::new(data.get::<_, &str>(0))
            .parent()
            .unwrap()
            .to_owned();
        kill_process(Pid::from_child(&child), signal).unwrap();
        child.wait().unwrap();
        let patience = Instant::now() + Duration::from_secs(60);
        while !client.is_closed() || folder.exists() {
            assert!(
                Instant::now() < patience,
                "{signal:?}: {}",
                folder.display()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
