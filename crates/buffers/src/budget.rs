//! The budget: the amount of buffer memory that is divided.

use std::fs;
use std::io;

use thiserror::Error;

/// The smallest budget in bytes. A smaller one would not give two connections the minimum that the
/// kernel allows.
pub const LEAST_BUDGET: u64 = 8192;
/// The largest budget in bytes: more than any kernel has for sockets.
const MOST_BUDGET: u64 = 1 << 50;

const TCP_MEM: &str = "/proc/sys/net/ipv4/tcp_mem";
const SOCKSTAT: &str = "/proc/net/sockstat";

/// The budget is invalid, or the default budget cannot be determined.
#[derive(Debug, Error)]
pub enum BudgetError {
    #[error("a budget of {0} bytes is too small to divide: expected at least {LEAST_BUDGET}")]
    TooSmall(u64),
    #[error("a budget of {0} bytes is more than any machine has: expected at most {MOST_BUDGET}")]
    TooLarge(u64),
    #[error("cannot read {TCP_MEM} for a default budget: {0}; give one")]
    Read(#[source] io::Error),
    #[error("{TCP_MEM} says {0:?}, expected three numbers; give a budget")]
    Nonsense(String),
}

/// Refuses budgets that are obviously unintended.
///
/// # Errors
/// The budget is below [`LEAST_BUDGET`] or above 1 PiB.
pub fn check_budget(bytes: u64) -> Result<u64, BudgetError> {
    match bytes {
        0..LEAST_BUDGET => Err(BudgetError::TooSmall(bytes)),
        LEAST_BUDGET..=MOST_BUDGET => Ok(bytes),
        _ => Err(BudgetError::TooLarge(bytes)),
    }
}

/// Returns the default budget in bytes: a quarter of the memory that TCP may use before the kernel
/// reduces its use (the second value of net.ipv4.tcp_mem). The kernel counts twice the payload, so
/// this budget is at most half of that limit; the rest is left to connections that are not
/// negotiated.
///
/// # Errors
/// The sysctl cannot be read.
pub fn default_budget() -> Result<u64, BudgetError> {
    let text = fs::read_to_string(TCP_MEM).map_err(BudgetError::Read)?;
    let pressure: Option<u64> = text.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    let pages = pressure.ok_or_else(|| BudgetError::Nonsense(text.trim().to_owned()))?;
    Ok(pages.saturating_mul(rustix::param::page_size() as u64) / 4)
}

/// Returns the memory of all TCP sockets of the machine, in bytes as the kernel counts them.
pub fn tcp_memory() -> Option<u64> {
    let text = fs::read_to_string(SOCKSTAT).ok()?;
    let line = text.lines().find(|line| line.starts_with("TCP:"))?;
    let mut words = line.split_whitespace();
    words.by_ref().find(|&word| word == "mem")?;
    let pages: u64 = words.next()?.parse().ok()?;
    Some(pages.saturating_mul(rustix::param::page_size() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_budget_accepts_only_sensible_values() {
        assert!(check_budget(0).is_err() && check_budget(8191).is_err() && check_budget(u64::MAX).is_err());
        assert!(check_budget(64 << 20).is_ok_and(|bytes| bytes == 64 << 20));
        assert!(default_budget().is_ok_and(|bytes| bytes >= LEAST_BUDGET));
        assert!(tcp_memory().is_some());
    }
}
