//! A limit of the kernel keeps a buffer smaller than the path needs.
//!
//! Either the buffer limits (for a tenth to half of the time, counted as in `sender_buffer` and
//! `receiver_window`) and stands at its ceiling: 70 % of the third value of net.ipv4.tcp_wmem or
//! tcp_rmem, because autotuning grows in steps. Or, if the limited times are not known, each
//! connection has in flight what the ceiling leaves for data: between 40 and 110 % of half the
//! ceiling (the kernel's bookkeeping takes about half), while the path could carry more than 1.3
//! times as much.
//!
//! These signs speak against it:
//! - unread data, or a receiver that writes most of the time (by the scale of `destination_disk`),
//!   because a slow reader fills any buffer;
//! - a standing queue (a round trip of 2 to 2.5 times that of the idle path);
//! - a ceiling that allows four to ten times the rate that was reached, as on loopback. In the last
//!   two cases something behind the buffers takes less than they offer, such as a full path or a
//!   busy processor.

use super::destination_disk::slow_reader;
use super::sender_buffer::AT_CEILING;
use crate::verdict::figures::ramp;
use crate::verdict::text::{link, percent, size, time};
use crate::verdict::{Cause, CauseKind, End, Evidence, Rule};

pub(super) struct KernelCeiling;

struct Side<'a> {
    end: &'a End,
    sysctl: &'static str,
    ceiling: f64,
    confidence: f64,
    limited: f64,
}

impl Rule for KernelCeiling {
    fn judge(&self, evidence: &Evidence) -> Option<Cause> {
        if evidence.socket_buffer.is_some() {
            return None;
        }
        let side = [sender(evidence), receiver(evidence)]
            .into_iter()
            .flatten()
            .filter(|side| side.confidence > 0.0)
            .max_by(|a, b| a.confidence.total_cmp(&b.confidence))?;
        let mut said = vec![format!("net.ipv4.{} lets a buffer grow to {}", side.sysctl, size(side.ceiling))];
        if let Some(rtt) = evidence.way() {
            let most = side.ceiling / 2.0 / rtt;
            said.push(format!("which leaves about {} per connection at {}", link(most), time(rtt)));
        }
        if side.limited > 0.0 {
            said.push(format!("it held connections up {} of the time", percent(side.limited)));
        }
        said.extend(evidence.capacity().map(|rate| format!("the path carries {}", link(rate))));
        let wanted = match (evidence.capacity(), evidence.way()) {
            (Some(rate), Some(rtt)) => {
                format!(" to {} at least", size((2.0 * rate * rtt / evidence.streams).ceil()))
            }
            _ => String::new(),
        };
        Some(Cause {
            kind: CauseKind::KernelCeiling,
            host: Some(side.end.name.clone()),
            confidence: side.confidence,
            evidence: said.join("; "),
            advice: format!(
                "raise the third value of net.ipv4.{}{wanted} (`ropewalk doctor --apply` there); until then use more streams",
                side.sysctl
            ),
        })
    }
}

fn sender(evidence: &Evidence) -> Option<Side<'_>> {
    let end = evidence.source.as_ref()?;
    let path = evidence.path.as_ref();
    let limited = path.map_or(0.0, |path| path.buffer_limited);
    let buffer = path.and_then(|path| path.send_buffer);
    side(evidence, end, "tcp_wmem", end.send_ceiling?, limited, buffer, 0.0)
}

fn receiver(evidence: &Evidence) -> Option<Side<'_>> {
    let end = evidence.destination.as_ref()?;
    let limited = evidence.path.as_ref().map_or(0.0, |path| path.window_limited);
    let slow = slow_reader(end);
    side(evidence, end, "tcp_rmem", end.receive_ceiling?, limited, end.receive_buffer, slow)
}

fn side<'a>(
    evidence: &Evidence,
    end: &'a End,
    sysctl: &'static str,
    ceiling: f64,
    limited: f64,
    buffer: Option<f64>,
    slow: f64,
) -> Option<Side<'a>> {
    let confidence = match buffer {
        Some(buffer) if buffer < AT_CEILING * ceiling => 0.0,
        Some(_) => 0.97 * ramp(limited, 0.1, 0.5),
        None => 0.6 * fits(evidence, ceiling)?,
    };
    let small = 1.0 - evidence.roomy(ceiling / 2.0);
    let confidence = confidence * (1.0 - slow) * (1.0 - evidence.standing()) * small;
    Some(Side { end, sysctl, ceiling, confidence, limited })
}

/// Whether the data in flight is what the ceiling allows, and less than the path could take.
fn fits(evidence: &Evidence, ceiling: f64) -> Option<f64> {
    let (rtt, capacity) = (evidence.rtt?, evidence.capacity()?);
    let flight = evidence.rate * rtt / evidence.streams;
    let fits = (0.4..=1.1).contains(&(flight / (ceiling / 2.0))) && capacity > 1.3 * evidence.rate;
    Some(f64::from(u8::from(fits)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::verdict::rules::samples::quiet;

    #[test]
    fn kernel_ceiling_when_receive_buffer_is_at_it_is_found() {
        let mut evidence = quiet();
        evidence.path.as_mut().unwrap().window_limited = 0.95;
        let end = evidence.destination.as_mut().unwrap();
        (end.receive_buffer, end.receive_ceiling) = (Some(131_072.0), Some(131_072.0));
        (evidence.rate, evidence.baselines.path) = (20e6, Some(25e6));
        let cause = KernelCeiling.judge(&evidence).unwrap();
        assert_eq!((cause.host.as_deref(), cause.confidence > 0.9), (Some("right"), true));
        assert!(cause.evidence.contains("tcp_rmem lets a buffer grow to 128 KiB"), "{cause:?}");
        assert!(cause.advice.contains("2.86 MiB"), "{cause:?}");
        // The receiver does not read the data, so no buffer would be large enough.
        evidence.destination.as_mut().unwrap().unread = Some(65_000.0);
        assert_eq!(KernelCeiling.judge(&evidence), None);
    }

    #[test]
    fn kernel_ceiling_when_send_buffer_is_at_it_is_found() {
        let mut evidence = quiet();
        let path = evidence.path.as_mut().unwrap();
        (path.buffer_limited, path.send_buffer) = (0.6, Some(260_000.0));
        evidence.source.as_mut().unwrap().send_ceiling = Some(262_144.0);
        let cause = KernelCeiling.judge(&evidence).unwrap();
        assert!(cause.confidence > 0.9 && cause.advice.contains("tcp_wmem"), "{cause:?}");
        evidence.socket_buffer = Some(65_536.0);
        assert_eq!(KernelCeiling.judge(&evidence), None);
    }

    #[test]
    fn kernel_ceiling_when_a_queue_stands_is_none() {
        let mut evidence = quiet();
        let rtt = evidence.rtt.unwrap();
        let path = evidence.path.as_mut().unwrap();
        (path.buffer_limited, path.send_buffer, path.rtt) = (0.9, Some(4e6), 1.5 * rtt);
        evidence.source.as_mut().unwrap().send_ceiling = Some(4e6);
        assert!(KernelCeiling.judge(&evidence).unwrap().confidence > 0.9);
        evidence.path.as_mut().unwrap().rtt = 4.0 * rtt;
        assert_eq!(KernelCeiling.judge(&evidence), None);
    }

    #[test]
    fn kernel_ceiling_on_loopback_is_none() {
        let mut evidence = quiet();
        (evidence.rate, evidence.peak, evidence.rtt) = (1e9, None, Some(1e-6));
        let path = evidence.path.as_mut().unwrap();
        (path.buffer_limited, path.send_buffer, path.rtt) = (0.9, Some(4e6), 1e-6);
        evidence.source.as_mut().unwrap().send_ceiling = Some(4e6);
        assert_eq!(KernelCeiling.judge(&evidence), None);
    }

    #[test]
    fn kernel_ceiling_without_limited_times_uses_the_flight() {
        let mut evidence = quiet();
        evidence.path = None;
        evidence.rate = 1e6;
        evidence.baselines.path = Some(25e6);
        let end = evidence.destination.as_mut().unwrap();
        (end.receive_buffer, end.receive_ceiling) = (None, Some(131_072.0));
        let confidence = KernelCeiling.judge(&evidence).unwrap().confidence;
        assert!((0.5..0.7).contains(&confidence), "{confidence}");
        evidence.baselines.path = Some(1.1e6);
        assert_eq!(KernelCeiling.judge(&evidence), None);
    }

    #[test]
    fn kernel_ceiling_when_buffers_are_large_is_none() {
        assert_eq!(KernelCeiling.judge(&quiet()), None);
        assert_eq!(KernelCeiling.judge(&Evidence::default()), None);
    }
}
