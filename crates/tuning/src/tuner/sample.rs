//! What a tuner is told of a transfer.

use thiserror::Error;

/// Beyond this a rate is a mistake of a clock or a counter: 80 Tbit/s.
const MAX_RATE: f64 = 1e13;
/// A chunk that took longer than this saw its clock jump, or says nothing of the path as it is now.
const MAX_SECONDS: f64 = 86_400.0;
const MIN_SECONDS: f64 = 1e-6;
/// Longest round trip that is believed; a geostationary hop has 0.6 s.
const MAX_RTT: f64 = 60.0;

/// How busy what is not the network was: share of time from 0 to 1, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// Time for which streams waited for this end's storage.
    pub disk: Option<f64>,
    /// The busiest core's.
    pub cpu: Option<f64>,
    /// Time for which the other end had nothing to send.
    pub peer: Option<f64>,
    /// Time for which streams waited for the other end's receive windows. These are small, or it takes no more: that is told apart by
    /// what more streams carry.
    pub window: Option<f64>,
    /// Share of a limit that was set on the rate of this end's program which was used.
    pub limit: Option<f64>,
}

/// What is left to do, for the choice of files in flight and pipeline depth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    pub files: u64,
    pub bytes: u64,
}

/// What was measured of a chunk that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Chunk {
    /// Connections that carried it, over all files.
    pub streams: u32,
    /// What arrived.
    pub bytes: u64,
    /// From the request to the completion.
    pub seconds: f64,
    /// Mean round trip in seconds.
    pub rtt: Option<f64>,
    /// Least round trip in seconds.
    pub min_rtt: Option<f64>,
    /// Share of packets lost.
    pub loss: Option<f64>,
    /// The most that a stream may have in flight, in bytes.
    pub window: Option<f64>,
    pub pressure: Pressure,
    /// What is left to do after it.
    pub work: Option<Work>,
}

/// How a chunk fares while it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Seconds since its request.
    pub elapsed: f64,
    /// Bytes a second since the last report (a 112 marker, GFD.20 section 7.2.2).
    pub rate: f64,
}

/// Why a sample was left out.
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
    /// Without the optional parts.
    pub fn new(streams: u32, bytes: u64, seconds: f64) -> Self {
        Self { streams, bytes, seconds, ..Self::default() }
    }

    /// Mean rate in bytes a second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }

    /// The sample with optional parts that make no sense left out.
    ///
    /// # Errors
    /// When time, rate or streams make no sense; then nothing of it can be used.
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
        // All lost, and yet something arrived: not a loss rate.
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
    /// When time or rate make no sense.
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
    fn nonsense_is_refused() {
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
    fn optional_nonsense_is_left_out() {
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
