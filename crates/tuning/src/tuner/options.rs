//! The options and hints that a tuner gets before it starts.

use thiserror::Error;

use super::decision::CongestionControl;

/// No tuner ever opens more connections than this, regardless of its options.
pub const MAX_STREAMS: u32 = 1024;

/// How the driver changes the number of streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connections {
    /// Each chunk opens new connections (ERET and ESTO to stock servers without cached data
    /// channels): a chunk starts with a handshake and slow start.
    #[default]
    Fresh,
    /// Connections stay open; streams are added or removed while data is transferred.
    Kept,
}

/// How a tuner treats other flows on the path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fairness {
    /// Adds streams while the transfer has less than this share of the path's total rate, other
    /// flows included. With 1 it disregards other flows.
    Share(f64),
    /// Reduces streams when the path shows a queue or loss, as a background transfer does (the idea
    /// of RFC 6817).
    Polite,
}

impl Fairness {
    /// The share at which a transfer stops adding streams if the user states none.
    pub const USUAL: f64 = 0.95;

    /// The requested share, if it is below the one that a transfer takes by default.
    pub fn stated(self) -> Option<f64> {
        match self {
            Self::Share(share) if share < Self::USUAL => Some(share),
            _ => None,
        }
    }
}

/// The result of an earlier transfer over the same path. It is used as a start, and always verified
/// by measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prior {
    pub streams: u32,
    /// Bytes per second that they carried.
    pub rate: f64,
    /// Minimum round-trip time in seconds. If it differs now, the path is not the same.
    pub min_rtt: Option<f64>,
    /// Seconds since then.
    pub age: f64,
}

/// The options and hints that a tuner gets before it starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Number of streams to start with if nothing is known.
    pub first_streams: u32,
    /// Fewer streams are tried only if the path requires it. This number is known to do no harm.
    pub least_streams: u32,
    /// Maximum number of streams.
    pub max_streams: u32,
    /// Target duration of a chunk, in seconds.
    pub chunk_seconds: f64,
    /// Size of a packet on the path including headers, in bytes.
    pub packet_bytes: f64,
    /// Capacity of the path, in bytes per second.
    pub capacity: Option<f64>,
    /// Round-trip time in seconds, if it is known before the first chunk (that of the control
    /// connection).
    pub rtt: Option<f64>,
    /// Maximum number of bytes in flight of a stream.
    pub window: Option<f64>,
    /// Fraction of packets that the path loses without congestion.
    pub loss: Option<f64>,
    pub connections: Connections,
    pub fairness: Fairness,
    pub prior: Option<Prior>,
    /// Congestion controls that the site allows and the host has; empty: keep the host's default.
    pub congestion: Vec<CongestionControl>,
    /// Maximum number of concurrent files.
    pub max_files: u32,
    /// Maximum pipeline depth.
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

/// An option that is not valid.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum OptionsError {
    #[error("{name} is {given}: expected {least} to {most}")]
    Range { name: &'static str, given: f64, least: f64, most: f64 },
    #[error("first streams {first} are more than the most allowed, {most}")]
    FirstOverMost { first: u32, most: u32 },
}

impl Options {
    /// # Errors
    /// A value is outside its range.
    pub fn check(&self) -> Result<(), OptionsError> {
        fn range(name: &'static str, given: f64, least: f64, most: f64) -> Result<(), OptionsError> {
            // This form of the condition refuses NaN.
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
    fn default_options_are_valid() {
        assert_eq!(Options::default().check(), Ok(()));
    }

    #[test]
    fn check_of_invalid_options_fails() {
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
