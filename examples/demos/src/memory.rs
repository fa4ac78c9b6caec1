//! How much memory the process has, as the operating system counts it.

use std::fs;

/// Returns the resident bytes, or `None` where there is no Linux to ask.
///
/// `smaps_rollup` walks the page tables; the count in `status` is allowed to lag a little behind.
pub fn resident() -> Option<u64> {
    from("/proc/self/smaps_rollup", "Rss:").or_else(|| from("/proc/self/status", "VmRSS:"))
}

/// Returns a number of kilobytes in a file of `/proc`, in bytes.
pub fn from(file: &str, field: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
