//! What a tuner is told before it starts.

use thiserror::Error;

use super::decision::CongestionControl;

/// No tuner ever opens more connections than this, whatever is asked.
pub const MAX_STREAMS: u32 = 1024;

/// How the driver changes the number of streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connections {
    /// Each chunk opens its own (ERET and ESTO to stock servers without cached data channels): a chunk
    /// begins with a handshake and slow start.
    #[default]
    Fresh,
    /// They stay open; streams are added or taken away while data moves.
    Kept,
}

/// How a tuner treats other flows of the path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fairness {
    /// Adds streams while they take less than this share of what the path carries, others included.
    /// 1 is without regard.
    Share(f64),
    /// Withdraws when the path shows a queue or loss, as a background transfer does (RFC 6817's idea).
    Polite,
}

impl Fairness {
    /// The share that a transfer stops at where nobody states one.
    pub const USUAL: f64 = 0.95;

    /// The share that was asked for, where that is not what a transfer takes anyway.
    pub fn stated(self) -> Option<f64> {
        match self {
            Self::Share(share) if share < Self::USUAL => Some(share),
            _ => None,
        }
    }
}

/// What an earlier transfer over the same path found. Used to start, never trusted without measuring.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prior {
    pub streams: u32,
    /// Bytes a second that they carried.
    pub rate: f64,
    /// Least round trip then, in seconds. A path with another one is not the same path.
    pub min_rtt: Option<f64>,
    /// Seconds since then.
    pub age: f64,
}

/// What a tuner is told before it starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Streams to begin with where nothing is known.
    pub first_streams: u32,
    /// Fewer are not tried for their own sake, only where the path forces it: what is known to do no harm.
    pub least_streams: u32,
    /// The most that may ever be used.
    pub max_streams: u32,
    /// How long a chunk should take.
    pub chunk_seconds: f64,
    /// Bytes of a packet on the path, headers included.
    pub packet_bytes: f64,
    /// What the path may carry, in bytes a second.
    pub capacity: Option<f64>,
    /// Round trip in seconds, where it is known before the first chunk (the control connection's).
    pub rtt: Option<f64>,
    /// The most that a stream may have in flight, in bytes.
    pub window: Option<f64>,
    /// Share of packets that the path loses by itself.
    pub loss: Option<f64>,
    pub connections: Connections,
    pub fairness: Fairness,
    pub prior: Option<Prior>,
    /// Congestion controls that the site allows and the host has; empty: leave the host's own.
    pub congestion: Vec<CongestionControl>,
    /// The most files in flight.
    pub max_files: u32,
    /// The most commands sent ahead.
    pub max_pipeline: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            first_streams: 4,
            least_streams: 1,
            max_streams: 128,
            chunk_seconds: 10.0,
            packet_bytes: 1500.0,
            capacity: None,
            rtt: None,
            window: None,
            loss: None,
            connections: Connections::Fresh,
            fairness: Fairness::Share(Fairness::USUAL),
            prior: None,
            congestion: Vec::new(),
            max_files: 16,
            max_pipeline: 64,
        }
    }
}

/// An option that makes no sense.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum OptionsError {
    #[error("{name} is {given}: expected {least} to {most}")]
    Range { name: &'static str, given: f64, least: f64, most: f64 },
    #[error("first streams {first} are more than the most allowed, {most}")]
    FirstOverMost { first: u32, most: u32 },
}

impl Options {
    /// # Errors
    /// When a value is outside of what it can be.
    pub fn check(&self) -> Result<(), OptionsError> {
        fn range(name: &'static str, given: f64, least: f64, most: f64) -> Result<(), OptionsError> {
            // Written so that NaN is refused.
            if given >= least && given <= most {
                Ok(())
            } else {
                Err(OptionsError::Range { name, given, least, most })
            }
        }
        range("most streams", self.max_streams.into(), 1.0, MAX_STREAMS.into())?;
        range("least streams", self.least_streams.into(), 1.0, self.max_streams.into())?;
        range("first streams", self.first_streams.into(), 1.0, MAX_STREAMS.into())?;
        range("chunk seconds", self.chunk_seconds, 0.01, 3600.0)?;
        range("packet bytes", self.packet_bytes, 64.0, 65_536.0)?;
        range("most files in flight", self.max_files.into(), 1.0, 1024.0)?;
        range("most commands ahead", self.max_pipeline.into(), 1.0, 4096.0)?;
        if let Some(capacity) = self.capacity {
            range("capacity in bytes/s", capacity, 1.0, 1e13)?;
        }
        if let Some(rtt) = self.rtt {
            range("round trip in seconds", rtt, 1e-6, 60.0)?;
        }
        if let Some(window) = self.window {
            range("window in bytes", window, 1.0, 1e12)?;
        }
        if let Some(loss) = self.loss {
            range("loss", loss, 0.0, 0.999)?;
        }
        if let Fairness::Share(share) = self.fairness {
            range("share", share, 0.01, 1.0)?;
        }
        if let Some(prior) = self.prior {
            range("remembered streams", prior.streams.into(), 1.0, MAX_STREAMS.into())?;
            range("remembered rate in bytes/s", prior.rate, 1.0, 1e13)?;
            range("age of what is remembered in seconds", prior.age, 0.0, f64::MAX)?;
            if let Some(rtt) = prior.min_rtt {
                range("remembered round trip in seconds", rtt, 1e-6, 60.0)?;
            }
        }
        if self.first_streams > self.max_streams {
            return Err(OptionsError::FirstOverMost { first: self.first_streams, most: self.max_streams });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_sound() {
        assert_eq!(Options::default().check(), Ok(()));
    }

    #[test]
    fn nonsense_is_named() {
        let wrong = [
            Options { max_streams: 10_000, ..Options::default() },
            Options { first_streams: 0, ..Options::default() },
            Options { least_streams: 0, ..Options::default() },
            Options { least_streams: 200, ..Options::default() },
            Options { first_streams: 8, max_streams: 4, ..Options::default() },
            Options { chunk_seconds: f64::NAN, ..Options::default() },
            Options { capacity: Some(f64::INFINITY), ..Options::default() },
            Options { rtt: Some(0.0), ..Options::default() },
            Options { window: Some(-1.0), ..Options::default() },
            Options { loss: Some(1.0), ..Options::default() },
            Options { fairness: Fairness::Share(0.0), ..Options::default() },
            Options {
                prior: Some(Prior { streams: 0, rate: 1.0, min_rtt: None, age: 0.0 }),
                ..Options::default()
            },
        ];
        for options in wrong {
            assert!(options.check().is_err(), "{options:?}");
        }
    }
}
