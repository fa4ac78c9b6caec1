//! What is drawn for a request: when it arrives, how long it takes, on which keys it waits.

use crate::options::Options;
use demos::random::Random;
use std::f64::consts::TAU;

/// Where the standard normal distribution has its 75th percentile: the original's constant.
const NORMAL_PCT75: f64 = 0.674490;

/// At most so many samples are drawn, as in the original, and used again and again.
const SAMPLES: u32 = 1_000_000;

/// Drawn beforehand: logarithms would take as long as all that the generator does for a request.
pub(crate) struct Sample {
    /// Nanoseconds from the arrival before: exponential, so arrivals are a Poisson process.
    pub(crate) interval: f64,
    /// Nanoseconds: log-normal.
    pub(crate) latency: u64,
}

pub(crate) fn samples(options: &Options) -> Box<[Sample]> {
    let mut random = Random::new(options.seed);
    let interval = 1e9 / f64::from(options.rate);
    // Mean and standard deviation of the latency's logarithm.
    let mu = (options.pct50 * 1e6).ln();
    let sigma = (options.pct75 / options.pct50).ln() / NORMAL_PCT75;
    let draw = |_| Sample {
        interval: -uniform(&mut random).ln() * interval,
        latency: (mu + sigma * normal(&mut random)).exp() as u64,
    };
    (0..options.num.min(SAMPLES)).map(draw).collect()
}

/// Returns a normal deviate by Box and Muller, "A Note on the Generation of Random Normal
/// Deviates", 1958; one of its two.
fn normal(random: &mut Random) -> f64 {
    (-2.0 * uniform(random).ln()).sqrt() * (TAU * uniform(random)).cos()
}

/// Returns a number greater than 0 and at most 1, so that it has a logarithm.
fn uniform(random: &mut Random) -> f64 {
    ((random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

/// The keys of the requests, at random.
pub(crate) struct Keys {
    random: Random,
    key_space: u64,
    keys: Box<[u32]>,
    /// The original draws them once, for all requests.
    are_same: bool,
}

impl Keys {
    pub(crate) fn new(options: &Options) -> Self {
        let mut keys = Keys {
            // Not the samples' numbers once more.
            random: Random::new(!options.seed),
            key_space: options.key_space_size.into(),
            keys: vec![0; options.keys as usize].into(),
            are_same: options.kafka,
        };
        keys.draw();
        keys
    }

    /// Returns the keys of the next request.
    pub(crate) fn next(&mut self) -> &[u32] {
        if !self.are_same {
            self.draw();
        }
        &self.keys
    }

    fn draw(&mut self) {
        for key in &mut self.keys {
            *key = self.random.below(self.key_space) as u32;
        }
    }
}
