//! Figures as reports show them.

use hdrhistogram::Histogram;
use serde::Serialize;

/// How late, in microseconds. Nothing if nothing was counted.
#[derive(Serialize)]
pub struct Lateness {
    pub p50: Option<f64>,
    pub p99: Option<f64>,
    pub p999: Option<f64>,
    pub max: Option<f64>,
}

impl Lateness {
    /// Creates the figures from a histogram of nanoseconds.
    pub fn new(histogram: &Histogram<u64>) -> Self {
        let counted = |nanos: u64| (!histogram.is_empty()).then(|| microseconds(nanos));
        Lateness {
            p50: counted(histogram.value_at_quantile(0.5)),
            p99: counted(histogram.value_at_quantile(0.99)),
            p999: counted(histogram.value_at_quantile(0.999)),
            max: counted(histogram.max()),
        }
    }
}

pub fn rate(count: u64, seconds: f64) -> u64 {
    (count as f64 / seconds).round() as u64
}

pub fn microseconds(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

/// Formats 1234567 as "1,234,567".
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
