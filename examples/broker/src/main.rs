//! A small Kafka broker, to be used with Kafka's own clients.

#![forbid(unsafe_code)]

use clap::Parser;
use std::error::Error;
use std::io::{Write, stdout};
use tickwheel::Timer;
use tickwheel_broker::{Options, Server};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    // The one timer of everything that waits; it brings the only other thread.
    let timer = Timer::builder().name("broker").start()?;
    let server = Server::bind(&options, timer).await?;
    println!("listening on {}", server.address());
    stdout().flush()?;
    server.run(async { drop(tokio::signal::ctrl_c().await) }).await;
    Ok(())
}
