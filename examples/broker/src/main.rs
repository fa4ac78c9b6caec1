//! A small Kafka broker, to be used with Kafka's own clients.

#![forbid(unsafe_code)]

use clap::Parser;
use std::io;
use std::process::ExitCode;
use tickwheel::Timer;
use tickwheel_broker::{Options, Server};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let served = serve(&Options::parse()).await;
    let _ = served
        .as_ref()
        .inspect_err(|error| eprintln!("tickwheel-broker: {error}"));
    ExitCode::from(u8::from(served.is_err()))
}

async fn serve(options: &Options) -> io::Result<()> {
    // The one timer of everything that waits; it brings the only other thread.
    let timer = Timer::builder()
        .name("broker")
        .start()
        .map_err(io::Error::other)?;
    let server = Server::bind(options, timer).await?;
    server
        .run(async { drop(tokio::signal::ctrl_c().await) })
        .await;
    Ok(())
}
