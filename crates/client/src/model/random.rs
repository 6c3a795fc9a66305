//! Random numbers that other runs do not have, on whatever host they are.

/// A number from the kernel's random source. Without one, which no supported kernel lacks, it is
/// only unlikely that another run has the same number.
pub(crate) fn unique() -> u64 {
    getrandom::u64().unwrap_or_else(|_| fastrand::u64(..))
}
