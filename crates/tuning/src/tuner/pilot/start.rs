//! Chooses the initial number of streams: from hints about the path, from an earlier transfer, or
//! the default.

use super::super::decision::Reason;
use super::super::options::{Options, Prior};
use super::ramp::MARGIN;
use super::share::stated;
use crate::model::window_of_loss;

/// Maximum age of an earlier result, in seconds: thirty days.
const LONGEST: f64 = 30.0 * 86_400.0;
/// If round-trip times differ by more than this (logarithm), the paths are different.
const SAME_PATH: f64 = 0.25;

/// The initial number of streams, the expected rate, and the reason.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Start {
    pub(super) streams: u32,
    pub(super) rate: Option<f64>,
    pub(super) reason: Reason,
}

pub(super) fn start(options: &Options) -> Start {
    let found = options.prior.and_then(|prior| remembered(options, prior)).or_else(|| warm(options));
    // Both results fill the path, including the share of other flows.
    let found = found.filter(|_| stated(options).is_none());
    let start = found.unwrap_or(Start { streams: options.first_streams, rate: None, reason: Reason::Start });
    Start { streams: start.streams.clamp(1, options.max_streams), ..start }
}

fn remembered(options: &Options, prior: Prior) -> Option<Start> {
    let elsewhere = prior.min_rtt.zip(options.rtt).is_some_and(|(a, b)| (a / b).ln().abs() > SAME_PATH);
    let usable = prior.age <= LONGEST && !elsewhere;
    let reason = Reason::Remembered { streams: prior.streams };
    usable.then_some(Start { streams: prior.streams, rate: Some(prior.rate), reason })
}

/// The model's knee: capacity times round-trip time, divided by the bytes in flight of a stream.
fn warm(options: &Options) -> Option<Start> {
    let (capacity, rtt) = (options.capacity?, options.rtt?);
    let by_loss = options.loss.filter(|&loss| loss > 0.0).and_then(|loss| window_of_loss(loss).ok());
    let by_buffer = options.window.map(|window| window / options.packet_bytes);
    let window_packets = match (by_loss, by_buffer) {
        (Some(a), Some(b)) => a.min(b),
        (a, b) => a.or(b)?,
    };
    let window = options.packet_bytes * window_packets.max(1.0);
    // The cast saturates.
    let streams = ((MARGIN * capacity * rtt / window).ceil() as u32).clamp(1, options.max_streams);
    // This number may not fill the path.
    let rate = capacity.min(f64::from(streams) * window / rtt);
    Some(Start { streams, rate: Some(rate), reason: Reason::WarmStart { capacity, window_packets } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_with_hints_uses_the_model() {
        let options =
            Options { capacity: Some(12.5e6), rtt: Some(0.1), window: Some(65_536.0), ..Options::default() };
        // 19.07 streams fill the path; add a tenth.
        assert_eq!((start(&options).streams, start(&options).rate), (21, Some(12.5e6)));
        // The permitted number carries less.
        let few = start(&Options { max_streams: 16, ..options.clone() });
        assert!(
            few.streams == 16 && few.rate.is_some_and(|rate| (rate - 16.0 * 655_360.0).abs() < 1.0),
            "{few:?}"
        );
        let lossy = Options { loss: Some(1e-3), ..options.clone() };
        assert!(start(&lossy).streams > 21);
        let unknown = Options { window: None, ..options };
        assert_eq!(start(&unknown).streams, 4);
    }

    #[test]
    fn start_with_prior_of_another_path_ignores_it() {
        let prior = Prior { streams: 30, rate: 1e7, min_rtt: Some(0.1), age: 3600.0 };
        let options = Options { prior: Some(prior), rtt: Some(0.11), ..Options::default() };
        assert_eq!(start(&options).streams, 30);
        assert_eq!(start(&Options { rtt: Some(0.2), ..options.clone() }).streams, 4);
        let old = Prior { age: 1e8, ..prior };
        assert_eq!(start(&Options { prior: Some(old), ..options.clone() }).streams, 4);
        assert_eq!(start(&Options { max_streams: 8, ..options }).streams, 8);
    }

    #[test]
    fn start_with_absurd_hints_stays_within_bounds() {
        let options =
            Options { capacity: Some(1e13), rtt: Some(60.0), window: Some(1.0), ..Options::default() };
        assert_eq!(start(&options).streams, 128);
    }
}
