//! The send buffer is too small for the path because a program set its size.
//!
//! The kernel counts the time in which a connection had window left, but its send buffer was at its
//! full size and had no unsent data, so that the program could not hand over more (tcp(7):
//! sndbuf_limited). Samples in which TCP had sent all its data while the buffer was full count too.
//! A tenth of the time is a sign, half is proof: the kernel counts only time that no other limit
//! explains.
//!
//! If the buffer stands at its ceiling, the ceiling is the cause (`kernel_ceiling`); "stands at"
//! means 70 % of it, because autotuning grows in steps. A buffer that holds a whole file of many
//! makes no program wait: it looks full between one file and the next. A buffer that holds four to
//! ten times the data that a connection had in flight is not small, whatever fills it.

use crate::verdict::figures::ramp;
use crate::verdict::text::{percent, size, time};
use crate::verdict::{Cause, CauseKind, Evidence, Rule};

pub(super) struct SenderBuffer;

/// A buffer that has at least this share of its ceiling cannot grow.
pub(super) const AT_CEILING: f64 = 0.7;

impl Rule for SenderBuffer {
    fn judge(&self, evidence: &Evidence) -> Option<Cause> {
        let path = evidence.path.as_ref()?;
        let end = evidence.source.as_ref()?;
        let limited = ramp(path.buffer_limited, 0.1, 0.5);
        let holds_files = evidence.files >= 10.0
            && path.send_buffer.is_some_and(|buffer| evidence.bytes / evidence.files <= buffer);
        if limited == 0.0 || holds_files {
            return None;
        }
        let sure = match (path.send_buffer, end.send_ceiling) {
            (Some(buffer), Some(ceiling))
                if buffer >= AT_CEILING * ceiling && evidence.socket_buffer.is_none() =>
            {
                return None;
            }
            (Some(_), Some(_)) => 0.95,
            // The ceiling may be the cause.
            _ => 0.6,
        };
        // Half of a buffer is for data.
        let small = 1.0 - path.send_buffer.map_or(0.0, |bytes| evidence.roomy(bytes / 2.0));
        if small == 0.0 {
            return None;
        }
        let mut said =
            vec![format!("the send buffer held connections up {} of the time", percent(path.buffer_limited))];
        said.extend(path.send_buffer.map(|bytes| format!("it has {} (half of it for data)", size(bytes))));
        said.extend(evidence.way().map(|rtt| format!("the round trip takes {}", time(rtt))));
        Some(Cause {
            kind: CauseKind::SenderBuffer,
            host: Some(end.name.clone()),
            confidence: sure * limited * small,
            evidence: said.join("; "),
            advice: "do not set the sender's socket buffer (SO_SNDBUF, a buffer option): the kernel then sizes it; or set \
                     at least twice rate times round trip"
                .into(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::verdict::rules::samples::quiet;

    fn limited(share: f64) -> Evidence {
        let mut evidence = quiet();
        let path = evidence.path.as_mut().unwrap();
        path.buffer_limited = share;
        path.send_buffer = Some(131_072.0);
        evidence
    }

    #[test]
    fn sender_buffer_when_small_is_found() {
        let cause = SenderBuffer.judge(&limited(0.8)).unwrap();
        assert!(cause.confidence > 0.9 && cause.evidence.contains("128 KiB"), "{cause:?}");
        assert_eq!(SenderBuffer.judge(&limited(0.05)), None);
    }

    #[test]
    fn sender_buffer_when_at_the_ceiling_is_none_unless_requested() {
        let mut evidence = limited(0.8);
        evidence.source.as_mut().unwrap().send_ceiling = Some(131_072.0);
        assert_eq!(SenderBuffer.judge(&evidence), None);
        evidence.socket_buffer = Some(65_536.0);
        assert!(SenderBuffer.judge(&evidence).is_some());
    }

    #[test]
    fn sender_buffer_when_it_holds_a_file_is_none() {
        let mut evidence = limited(0.8);
        (evidence.files, evidence.bytes) = (120.0, 120.0 * 30_720.0);
        assert_eq!(SenderBuffer.judge(&evidence), None);
        evidence.bytes = 120.0 * 1e6;
        assert!(SenderBuffer.judge(&evidence).is_some());
    }

    #[test]
    fn sender_buffer_when_ceiling_is_unknown_is_less_sure() {
        let mut evidence = limited(0.8);
        evidence.source.as_mut().unwrap().send_ceiling = None;
        let confidence = SenderBuffer.judge(&evidence).unwrap().confidence;
        assert!(confidence < 0.7, "{confidence}");
        assert_eq!(SenderBuffer.judge(&Evidence::default()), None);
    }
}
