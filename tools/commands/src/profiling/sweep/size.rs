//! The buffer size that holds the path's bytes in flight.

use ropewalk_profiler::profile::{Baselines, Profile};
use ropewalk_profiler::verdict::Evidence;

use crate::units;

/// Smallest plausible buffer.
const LEAST: f64 = 4096.0;
/// Largest buffer that a kernel grants.
const MOST: f64 = (1_u64 << 31) as f64;

/// Rate × round trip in bytes, and the origin of both; or why it is unknown. The rate is the given
/// one (bits per second), else the highest measured one: a transfer limited by its buffers does not
/// show the capacity of the path.
pub(super) fn bdp(
    profile: &Profile,
    baselines: &Baselines,
    given: Option<u64>,
) -> Result<(u64, String), String> {
    let evidence = Evidence::of(profile);
    let rtt = baselines
        .rtt
        .or(evidence.rtt)
        .filter(|rtt| *rtt > 0.0)
        .ok_or("the round trip is not known: the sending end was not measured")?;
    let measured = [baselines.path, evidence.peak, Some(evidence.rate)].into_iter().flatten();
    let rate = match given {
        Some(bits) => bits as f64 / 8.0,
        None => measured.fold(0.0, f64::max),
    };
    if rate <= 0.0 || !rate.is_finite() {
        return Err("the rate is not known: nothing was moved".to_owned());
    }
    let from = if given.is_some() { "given" } else { "measured" };
    let places = if rtt < 1e-4 { 4 } else { 1 };
    let why = format!("{from} {} × {:.places$} ms", units::link_rate(rate), rtt * 1000.0);
    Ok(((rate * rtt).clamp(LEAST, MOST) as u64, why))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_profiler::profile::{RateSample, Workload};

    use super::*;

    #[test]
    fn bdp_is_rate_times_round_trip() {
        let workload = Workload {
            bytes: 1_000_000,
            seconds: 1.0,
            rates: vec![RateSample { time: 1.0, bytes_per_second: 2e6 }],
            ..Workload::default()
        };
        let profile = Profile { workload, ..Profile::default() };
        let baselines = Baselines { rtt: Some(0.1), ..Baselines::default() };
        assert_eq!(bdp(&profile, &baselines, None).unwrap().0, 200_000);
        assert_eq!(bdp(&profile, &baselines, Some(80_000_000)).unwrap().0, 1_000_000);
        let path = Baselines { path: Some(5e6), ..baselines.clone() };
        assert_eq!(bdp(&profile, &path, None).unwrap().0, 500_000);
        assert!(bdp(&profile, &path, None).unwrap().1.contains("40.0 Mbit/s × 100.0 ms"));
        assert!(bdp(&profile, &Baselines::default(), None).unwrap_err().contains("round trip"));
        assert!(bdp(&Profile::default(), &baselines, None).unwrap_err().contains("rate"));
        let slow = Baselines { rtt: Some(1e18), ..baselines };
        assert_eq!(bdp(&profile, &slow, None).unwrap().0, 1 << 31);
    }
}
