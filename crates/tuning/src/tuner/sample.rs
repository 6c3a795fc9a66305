//! The measurements of a transfer that a tuner gets.

use thiserror::Error;

/// A higher rate is an error of a clock or a counter: 80 Tbit/s.
const MAX_RATE: f64 = 1e13;
/// If a chunk took longer, its clock jumped, or it does not describe the current path.
const MAX_SECONDS: f64 = 86_400.0;
const MIN_SECONDS: f64 = 1e-6;
/// Maximum plausible round-trip time; a geostationary hop has 0.6 s.
const MAX_RTT: f64 = 60.0;

/// How busy the components other than the network were: fractions of the time from 0 to 1, as far
/// as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// Time for which streams waited for the storage at this end.
    pub disk: Option<f64>,
    /// Load of the busiest core.
    pub cpu: Option<f64>,
    /// Time for which the peer had no data to send.
    pub peer: Option<f64>,
    /// Time for which streams waited for the peer's receive windows. Either these windows are
    /// small, or the peer cannot receive faster; whether more streams carry more distinguishes the
    /// two cases.
    pub window: Option<f64>,
    /// The used fraction of the rate limit that is set for the program at this end.
    pub limit: Option<f64>,
}

/// The remaining work, from which the number of concurrent files and the pipeline depth are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    pub files: u64,
    pub bytes: u64,
}

/// Measurements of a finished chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Chunk {
    /// Number of connections that carried it, over all files.
    pub streams: u32,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Time from the request to the completion.
    pub seconds: f64,
    /// Mean round-trip time in seconds.
    pub rtt: Option<f64>,
    /// Minimum round-trip time in seconds.
    pub min_rtt: Option<f64>,
    /// Fraction of packets lost.
    pub loss: Option<f64>,
    /// Maximum number of bytes in flight of a stream.
    pub window: Option<f64>,
    pub pressure: Pressure,
    /// The remaining work after this chunk.
    pub work: Option<Work>,
}

/// Progress of the current chunk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Seconds since its request.
    pub elapsed: f64,
    /// Bytes per second since the last report (a 112 marker, GFD.20 section 7.2.2).
    pub rate: f64,
}

/// Why a sample is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum SampleError {
    #[error("a time of {0:?} s")]
    Time(f64),
    #[error("a rate of {0:e} bytes/s")]
    Rate(f64),
    #[error("no streams")]
    NoStreams,
    #[error("{0} streams, of which nobody has asked for more than {1}")]
    Streams(u32, u32),
}

impl Chunk {
    /// Makes a sample without the optional parts.
    pub fn new(streams: u32, bytes: u64, seconds: f64) -> Self {
        Self { streams, bytes, seconds, ..Self::default() }
    }

    /// Mean rate in bytes per second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }

    /// Returns the sample without invalid optional parts.
    ///
    /// # Errors
    /// Time, rate or streams are invalid, so that the sample cannot be used.
    pub fn checked(mut self) -> Result<Self, SampleError> {
        if self.streams == 0 {
            return Err(SampleError::NoStreams);
        }
        if !(self.seconds >= MIN_SECONDS && self.seconds <= MAX_SECONDS) {
            return Err(SampleError::Time(self.seconds));
        }
        if self.rate() > MAX_RATE {
            return Err(SampleError::Rate(self.rate()));
        }
        let rtt = |rtt: &f64| *rtt >= MIN_SECONDS && *rtt <= MAX_RTT;
        let share = |share: &f64| (0.0..=1.0).contains(share);
        self.rtt = self.rtt.filter(rtt);
        self.min_rtt = self.min_rtt.filter(rtt);
        if let (Some(mean), Some(least)) = (self.rtt, self.min_rtt)
            && mean < least
        {
            self.min_rtt = Some(mean);
        }
        // If all packets were lost, no data could have arrived, so this is not a loss rate.
        self.loss = self.loss.filter(|loss| share(loss) && *loss < 1.0);
        self.window = self.window.filter(|window| (1.0..=1e12).contains(window));
        let Pressure { disk, cpu, peer, window, limit } = self.pressure;
        self.pressure = Pressure {
            disk: disk.filter(share),
            cpu: cpu.filter(share),
            peer: peer.filter(share),
            window: window.filter(share),
            limit: limit.filter(share),
        };
        Ok(self)
    }
}

impl Progress {
    /// # Errors
    /// Time or rate are invalid.
    pub fn checked(self) -> Result<Self, SampleError> {
        if !(self.elapsed >= 0.0 && self.elapsed <= MAX_SECONDS) {
            return Err(SampleError::Time(self.elapsed));
        }
        if !(self.rate >= 0.0 && self.rate <= MAX_RATE) {
            return Err(SampleError::Rate(self.rate));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checked_invalid_sample_fails() {
        assert_eq!(Chunk::new(0, 1, 1.0).checked(), Err(SampleError::NoStreams));
        for seconds in [0.0, -1.0, f64::INFINITY, 1e9] {
            assert_eq!(Chunk::new(1, 1, seconds).checked(), Err(SampleError::Time(seconds)));
        }
        assert!(matches!(Chunk::new(1, 1, f64::NAN).checked(), Err(SampleError::Time(_))));
        assert!(matches!(Chunk::new(1, u64::MAX, 1.0).checked(), Err(SampleError::Rate(_))));
        assert!(Progress { elapsed: f64::NAN, rate: 1.0 }.checked().is_err());
        assert!(Progress { elapsed: 1.0, rate: -1.0 }.checked().is_err());
    }

    #[test]
    fn checked_invalid_optional_part_is_removed() {
        let chunk = Chunk {
            rtt: Some(-0.1),
            min_rtt: Some(f64::NAN),
            loss: Some(1.0),
            window: Some(0.0),
            pressure: Pressure {
                disk: Some(7.0),
                cpu: Some(0.5),
                peer: None,
                window: Some(f64::NAN),
                limit: None,
            },
            ..Chunk::new(1, 1, 1.0)
        };
        let expected =
            Chunk { pressure: Pressure { cpu: Some(0.5), ..Pressure::default() }, ..Chunk::new(1, 1, 1.0) };
        assert_eq!(chunk.checked(), Ok(expected));
        let crossed = Chunk { rtt: Some(0.1), min_rtt: Some(0.2), ..Chunk::new(1, 1, 1.0) };
        assert_eq!(crossed.checked().map(|chunk| chunk.min_rtt), Ok(Some(0.1)));
    }
}
