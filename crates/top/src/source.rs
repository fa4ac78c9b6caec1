//! The source: a service that tells its figures as JSON.

use std::error::Error;
use std::time::Duration;
use tickwheel_prometheus::Figures;
use ureq::Agent;

/// A service that has not answered by then does not.
const MAX_TIME: Duration = Duration::from_secs(2);

/// The most that is read of an answer, in bytes: thousands of levels.
const MAX_ANSWER: u64 = 64 << 20;

/// Where a service tells its figures.
#[derive(Debug)]
pub struct Source {
    url: String,
    agent: Agent,
}

impl Source {
    /// Takes an address as people write it: `localhost:9464`, `http://localhost:9464/wheels`.
    pub fn new(url: &str) -> Self {
        let config = Agent::config_builder().timeout_global(Some(MAX_TIME)).build();
        Source { url: whole(url), agent: config.into() }
    }

    /// Returns the whole address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Asks for the figures of this moment. Waits for two seconds at most.
    ///
    /// # Errors
    /// If nobody answers, or the answer is something else.
    pub fn fetch(&self) -> Result<Figures, Box<dyn Error>> {
        let mut answer = self.agent.get(&self.url).call()?;
        let body = answer.body_mut().with_config().limit(MAX_ANSWER).read_to_string()?;
        Ok(serde_json::from_str(&body).map_err(|error| format!("not figures: {error}"))?)
    }
}

/// Returns the address with its scheme, and with the path at which services answer.
fn whole(url: &str) -> String {
    let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let (scheme, rest) = url.split_once("://").expect("it has a scheme");
    match rest.split_once('/') {
        // What Prometheus reads lies beside.
        None | Some((_, "" | "metrics")) => {
            let host = rest.split('/').next().unwrap_or(rest);
            format!("{scheme}://{host}/wheels")
        }
        Some(_) => url,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_made_whole() {
        for (given, whole_url) in [
            ("localhost:9464", "http://localhost:9464/wheels"),
            ("http://localhost:9464/", "http://localhost:9464/wheels"),
            ("localhost:9464/metrics", "http://localhost:9464/wheels"),
            ("http://[::1]:1/timers?of=all", "http://[::1]:1/timers?of=all"),
        ] {
            assert_eq!(whole(given), whole_url);
        }
    }
}
