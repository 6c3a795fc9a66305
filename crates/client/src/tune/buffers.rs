//! Socket buffers of data connections at our end, by what is known of the path (ABUF, GFD.20): nothing is sent to try sizes out.
//! A server of ours does the same at its end where it is asked.

use std::time::Duration;

use ropewalk_transport::{Ceilings, SocketOptions};
pub(super) use ropewalk_tuning::buffers::Path;
use ropewalk_tuning::buffers::{Advice, Kernel, Side, advise};

use super::Ends;
use super::memory::Learnt;

/// The largest buffer that is asked for, in bytes; hosts have limits of their own.
pub(crate) const MOST: u64 = 1 << 30;

/// What to do with a buffer at our end, and why.
pub(crate) struct Buffer {
    side: Side,
    advice: Advice,
}

impl Buffer {
    /// For connections between these ends; `None` where both are servers, or the kernel does not tell its limits.
    pub(super) fn of(ends: &Ends, path: Path) -> Option<Self> {
        Self::within(Ceilings::read().ok()?, ends, path)
    }

    fn within(ceilings: Ceilings, ends: &Ends, path: Path) -> Option<Self> {
        let (side, limits) = match (&ends.source, &ends.destination) {
            (None, _) => (Side::Send, ceilings.send),
            (_, None) => (Side::Receive, ceilings.receive),
            _ => return None,
        };
        let (autotune_max, setsockopt_max) = (limits.autotune, limits.setsockopt);
        // No ceiling of a session is below it.
        let kernel = Kernel { side, autotune_max, setsockopt_min: 0, setsockopt_max };
        Some(Self { side, advice: advise(path, kernel, MOST) })
    }

    /// Sets what autotuning would leave too small.
    pub(crate) fn apply(&self, options: &mut SocketOptions) {
        let bytes = self.advice.bytes().and_then(|bytes| usize::try_from(bytes).ok());
        match self.side {
            Side::Send => options.send_buffer = bytes,
            Side::Receive => options.receive_buffer = bytes,
        }
    }

    /// In words.
    pub(super) fn why(&self) -> String {
        self.advice.to_string()
    }

    /// Autotuning does not suffice.
    pub(super) fn matters(&self) -> bool {
        !matches!(self.advice, Advice::Leave { .. })
    }
}

/// A path of so long ago is another one, in seconds.
const OLD: f64 = 30.0 * 86_400.0;

/// What an earlier transfer has shown of one connection.
pub(super) fn known(learnt: Option<Learnt>) -> Path {
    let Some(Learnt { prior, fastest }) = learnt.filter(|learnt| learnt.prior.age <= OLD) else {
        return Path::default();
    };
    path(prior.min_rtt, fastest.max(prior.rate / f64::from(prior.streams.max(1))))
}

/// Seconds, and bytes a second.
pub(super) fn path(rtt: Option<f64>, rate: f64) -> Path {
    let rtt = rtt.and_then(|rtt| Duration::try_from_secs_f64(rtt).ok()).filter(|rtt| !rtt.is_zero());
    // As far as it goes, and 0 of what is no number.
    Path { rtt, rate: Some(rate as u64).filter(|rate| *rate > 0) }
}

/// What both have shown.
pub(super) fn better(a: Path, b: Path) -> Path {
    Path { rtt: a.rtt.into_iter().chain(b.rtt).min(), rate: a.rate.max(b.rate) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_transport::BufferLimits;
    use ropewalk_tuning::tuner::Prior;

    use super::*;

    fn ends(source: Option<&str>, destination: Option<&str>) -> Ends {
        Ends { source: source.map(str::to_owned), destination: destination.map(str::to_owned) }
    }

    #[test]
    fn our_end_alone_is_set_where_autotuning_does_not_get_there() {
        let send = BufferLimits { autotune: 4 << 20, setsockopt: 64 << 20 };
        let receive = BufferLimits { autotune: 6 << 20, setsockopt: 212_992 };
        let of = |ends: Ends, path| Buffer::within(Ceilings { send, receive }, &ends, path);
        let (small, large) = (path(Some(0.1), 1e6), path(Some(0.1), 1e8));
        assert!(of(ends(Some("a"), Some("b")), large).is_none());
        let options = |buffer: &Buffer| {
            let mut options = SocketOptions::default();
            buffer.apply(&mut options);
            (options.send_buffer, options.receive_buffer)
        };
        for (source, destination) in [(None, Some("a")), (Some("a"), None)] {
            for path in [Path::default(), small] {
                let buffer = of(ends(source, destination), path).unwrap();
                assert!(!buffer.matters() && options(&buffer) == (None, None), "{}", buffer.why());
            }
        }
        // 10 MB are on their way.
        let sends = of(ends(None, Some("a")), large).unwrap();
        assert!(sends.matters() && options(&sends) == (Some(20_000_000), None), "{}", sends.why());
        // A buffer that is set would be smaller than what the kernel gets to.
        let receives = of(ends(Some("a"), None), large).unwrap();
        assert!(receives.matters() && options(&receives) == (None, None));
        assert!(receives.why().contains("net.ipv4.tcp_rmem"), "{}", receives.why());
    }

    #[test]
    fn one_connection_has_its_part() {
        let prior = Prior { streams: 4, rate: 4e6, min_rtt: Some(0.05), age: 0.0 };
        let known = known(Some(Learnt { prior, fastest: 0.0 }));
        assert_eq!(known, Path { rtt: Some(Duration::from_millis(50)), rate: Some(1_000_000) });
        assert_eq!(super::known(Some(Learnt { prior, fastest: 3e6 })).rate, Some(3_000_000));
        let old = Prior { age: OLD + 1.0, ..prior };
        assert_eq!(super::known(Some(Learnt { prior: old, fastest: 3e6 })), Path::default());
        assert_eq!(super::known(None), Path::default());
        let both = better(known, path(Some(0.04), 10.0));
        assert_eq!(both, Path { rtt: Some(Duration::from_millis(40)), rate: Some(1_000_000) });
        for (rtt, rate) in [(f64::NAN, f64::NAN), (-1.0, -5.0), (f64::INFINITY, 0.0), (0.0, 0.0)] {
            assert_eq!(path(Some(rtt), rate), Path::default());
        }
    }
}
