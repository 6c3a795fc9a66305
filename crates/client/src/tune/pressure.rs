//! Whether the processors limit this program.

use std::collections::HashMap;
use std::fs;
use std::time::Instant;

/// The share of its time for which the busiest thread of this program wanted a processor since the
/// last call: it ran, or waited to run. Other load on the machine counts only as far as it delays
/// this program.
#[derive(Default)]
pub(crate) struct Processors {
    last: Option<(Instant, HashMap<u64, u64>)>,
}

impl Processors {
    /// 0 to 1; `None` at the first call, and if the kernel does not report it.
    pub(super) fn busiest(&mut self) -> Option<f64> {
        let now = Instant::now();
        let wanted = threads()?;
        let (at, before) = self.last.replace((now, wanted.clone()))?;
        let nanos = now.duration_since(at).as_nanos() as f64;
        let most = wanted.iter().map(|(thread, time)| {
            // The time of a new thread counts from 0.
            time.saturating_sub(before.get(thread).copied().unwrap_or_default())
        });
        let most = most.max().filter(|_| nanos > 0.0)?;
        Some((most as f64 / nanos).min(1.0))
    }
}

/// Nanoseconds for which each thread ran or waited to run.
fn threads() -> Option<HashMap<u64, u64>> {
    let entries = fs::read_dir("/proc/self/task").ok()?;
    // Threads may end while they are read.
    let times = entries.flatten().filter_map(|entry| {
        let thread = entry.file_name().to_str()?.parse().ok()?;
        Some((thread, parse(&fs::read_to_string(entry.path().join("schedstat")).ok()?)?))
    });
    Some(times.collect()).filter(|all: &HashMap<_, _>| !all.is_empty())
}

/// Parses `run wait slices` of /proc/PID/task/TID/schedstat, in nanoseconds.
fn parse(text: &str) -> Option<u64> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse::<u64>);
    let (run, wait) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(run.saturating_add(wait))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn reads_times() {
        assert_eq!(parse("5 7 1\n"), Some(12));
        assert_eq!(parse("18446744073709551615 7 1"), Some(u64::MAX));
        for wrong in ["", "5", "x 7", "5 -7"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_thread_that_never_rests_is_seen() {
        let mut processors = Processors::default();
        assert_eq!(processors.busiest(), None);
        let began = Instant::now();
        let mut sum = 0_u64;
        while began.elapsed().as_millis() < 20 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(processors.busiest().is_none_or(|busy| busy > 0.5));
    }
}
