//! What the process has used, as the operating system counts it. `None` where there is no Linux.

use demos::memory;
use std::fs;

/// Returns the most bytes that were ever resident.
pub(crate) fn peak_memory() -> Option<u64> {
    memory::from("/proc/self/status", "VmHWM:")
}

/// Returns the seconds of processor time of all present and former threads: user and system.
pub(crate) fn cpu_seconds() -> Option<f64> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field, in parentheses, may hold anything; these are the 14th and the 15th.
    let mut fields = text[text.rfind(')')? + 1..].split_ascii_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    // In hundredths of a second: the kernel's USER_HZ.
    Some((user + system) / 100.0)
}
