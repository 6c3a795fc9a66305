//! Random numbers that are unique across runs and hosts.

/// A number from the kernel's random source. Without one, which no supported kernel lacks, another
/// run is only unlikely to have the same number.
pub(crate) fn unique() -> u64 {
    getrandom::u64().unwrap_or_else(|_| fastrand::u64(..))
}
