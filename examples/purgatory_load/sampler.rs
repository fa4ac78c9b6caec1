//! What is drawn for a request: when it arrives, how long it takes, on which keys it waits.

use crate::common::random::Random;
use crate::options::Options;
use std::f64::consts::TAU;

/// Where the standard normal distribution has its 75th percentile: the original's constant.
const NORMAL_PCT75: f64 = 0.674490;

pub(crate) struct Sampler {
    random: Random,
    /// Nanoseconds between two arrivals, on average.
    interval: f64,
    /// Mean and standard deviation of the latency's logarithm.
    mu: f64,
    sigma: f64,
    /// The Box-Muller transform makes two normal numbers at once.
    spare: Option<f64>,
    key_space: u64,
}

impl Sampler {
    pub(crate) fn new(options: &Options) -> Self {
        Sampler {
            random: Random::new(options.seed),
            interval: 1e9 / f64::from(options.rate),
            mu: (options.pct50 * 1e6).ln(),
            sigma: (options.pct75 / options.pct50).ln() / NORMAL_PCT75,
            spare: None,
            key_space: options.key_space_size.into(),
        }
    }

    /// Nanoseconds until the next arrival: exponential, so arrivals are a Poisson process.
    pub(crate) fn interval(&mut self) -> f64 {
        -self.uniform().ln() * self.interval
    }

    /// A latency in nanoseconds: log-normal.
    pub(crate) fn latency(&mut self) -> u64 {
        (self.mu + self.sigma * self.normal()).exp() as u64
    }

    /// Keys at random. The original draws them once, for all requests: then its key space makes no
    /// difference, and every request waits on the same few lists.
    pub(crate) fn keys(&mut self, keys: &mut [u32]) {
        for key in keys {
            *key = self.random.below(self.key_space) as u32;
        }
    }

    /// Box and Muller, "A Note on the Generation of Random Normal Deviates", 1958.
    fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        let (sin, cos) = (TAU * self.uniform()).sin_cos();
        self.spare = Some(radius * sin);
        radius * cos
    }

    /// More than 0, at most 1: it has a logarithm.
    fn uniform(&mut self) -> f64 {
        ((self.random.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}
