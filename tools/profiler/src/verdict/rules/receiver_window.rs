//! The receiver offers too small a window although it reads the data that arrives.
//!
//! The kernel counts the time in which a sender had data and room, but the peer's window was full
//! (tcp(7): rwnd_limited). A tenth of the time is a sign, half is proof. With unread data in the
//! receive buffer (by the scale of `destination_disk`), or with a receiver that writes most of the
//! time, the slow reader is the cause. With a buffer at the kernel's ceiling, the ceiling is the
//! cause. A window that allows four to ten times the rate that was reached is not the cause either:
//! on a path as short as loopback a window is full because the receiver is slower than the sender,
//! whatever its size.

use super::destination_disk::slow_reader;
use super::sender_buffer::AT_CEILING;
use crate::verdict::figures::ramp;
use crate::verdict::text::{link, percent, size, time};
use crate::verdict::{Cause, CauseKind, Evidence, Rule};

pub(super) struct ReceiverWindow;

impl Rule for ReceiverWindow {
    fn judge(&self, evidence: &Evidence) -> Option<Cause> {
        let path = evidence.path.as_ref()?;
        let limited = ramp(path.window_limited, 0.1, 0.5);
        let end = evidence.destination.as_ref();
        let slow_reader = end.map_or(0.0, slow_reader);
        let at_ceiling = end.is_some_and(|end| {
            matches!((end.receive_buffer, end.receive_ceiling), (Some(buffer), Some(ceiling)) if buffer >= AT_CEILING * ceiling)
        });
        if at_ceiling && evidence.socket_buffer.is_none() {
            return None;
        }
        // A receiver that was not measured may be a slow reader.
        let sure = if end.is_some_and(|end| end.unread.is_some()) { 0.95 } else { 0.65 };
        let small = 1.0 - path.send_window.map_or(0.0, |bytes| evidence.roomy(bytes));
        let confidence = sure * limited * (1.0 - slow_reader) * small;
        if confidence == 0.0 {
            return None;
        }
        let mut said = vec![format!(
            "the receiver's window held the sender up {} of the time",
            percent(path.window_limited)
        )];
        said.extend(path.send_window.map(|bytes| format!("it is {}", size(bytes))));
        if let (Some(window), Some(rtt)) = (path.send_window, evidence.way()) {
            said.push(format!("which allows {} per connection at {}", link(window / rtt), time(rtt)));
        }
        Some(Cause {
            kind: CauseKind::ReceiverWindow,
            host: end.map(|end| end.name.clone()),
            confidence,
            evidence: said.join("; "),
            advice: "do not set the receiver's socket buffer (SO_RCVBUF): the kernel then sizes it; keep \
                     net.ipv4.tcp_window_scaling and tcp_moderate_rcvbuf at 1; otherwise use more streams"
                .into(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::verdict::rules::samples::quiet;

    fn limited() -> Evidence {
        let mut evidence = quiet();
        let path = evidence.path.as_mut().unwrap();
        path.window_limited = 0.9;
        path.send_window = Some(65_536.0);
        evidence.destination.as_mut().unwrap().receive_buffer = Some(131_072.0);
        evidence
    }

    #[test]
    fn receiver_window_when_small_is_found() {
        let cause = ReceiverWindow.judge(&limited()).unwrap();
        assert!(cause.confidence > 0.9 && cause.evidence.contains("64.0 KiB"), "{cause:?}");
        assert_eq!(ReceiverWindow.judge(&quiet()), None);
    }

    #[test]
    fn receiver_window_when_reader_is_slow_is_none() {
        let mut evidence = limited();
        evidence.destination.as_mut().unwrap().unread = Some(60_000.0);
        assert_eq!(ReceiverWindow.judge(&evidence), None);
    }

    #[test]
    fn receiver_window_when_at_the_ceiling_is_none() {
        let mut evidence = limited();
        evidence.destination.as_mut().unwrap().receive_ceiling = Some(131_072.0);
        assert_eq!(ReceiverWindow.judge(&evidence), None);
    }

    #[test]
    fn receiver_window_on_loopback_is_weak_or_none() {
        let mut evidence = limited();
        (evidence.rate, evidence.peak, evidence.rtt) = (9e9, None, Some(1e-6));
        let path = evidence.path.as_mut().unwrap();
        (path.rtt, path.send_window) = (46e-6, Some(3e6));
        // Ten times the data in flight at that rate would be 4 MB.
        let cause = ReceiverWindow.judge(&evidence).unwrap();
        assert!(cause.confidence < 0.6 && !cause.evidence.contains("bit/s"), "{cause:?}");
        evidence.path.as_mut().unwrap().send_window = Some(6e6);
        assert_eq!(ReceiverWindow.judge(&evidence), None);
    }

    #[test]
    fn receiver_window_when_receiver_is_unmeasured_is_less_sure() {
        let mut evidence = limited();
        evidence.destination = None;
        let cause = ReceiverWindow.judge(&evidence).unwrap();
        assert!(cause.confidence < 0.7 && cause.host.is_none());
    }
}
