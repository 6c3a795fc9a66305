//! Checks whether a host is ready for a link of some rate and round trip, and changes its settings
//! so that it is.
//!
//! [`checks`] compares a host's [`Facts`] with the settings that sites which move data over such
//! links have found necessary (ESnet's and OSG's published host tuning). [`Changes`] are the
//! settings among these that can be written. A [`Journal`] keeps the old values, so that
//! [`Journal::restore`] restores exactly those, even if the program or the machine died in between.
//! A [`Trial`] switches between the old and the new values, and a [`Judgement`] decides from the
//! measured rates whether the new ones are worth keeping.
//!
//! Limits are only ever raised: a host that is set up for more is ready.

mod change;
mod checks;
mod journal;
mod judge;
mod trial;
mod wanted;

pub use change::{Applied, Change, Changes, Refused, Sysctls};
pub use checks::{Check, CheckState, checks};
pub use journal::{Journal, JournalError, Restored};
pub use judge::Judgement;
pub use trial::{Foreign, Trial};
pub use wanted::Wanted;

use serde::Serialize;

#[cfg(doc)]
use crate::profile::Facts;

/// Version of the JSON of [`Check`]s.
pub const SCHEMA: u32 = 1;

/// The link that a host should be ready for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// Bytes per second.
    pub rate: f64,
    /// Round trip, in seconds.
    pub rtt: f64,
}

impl Goal {
    /// The bandwidth-delay product: rate times round trip, which is the number of bytes in flight
    /// when the link is full.
    pub fn bdp(&self) -> f64 {
        self.rate * self.rtt
    }

    /// The rate in bits per second.
    pub fn bits(&self) -> f64 {
        self.rate * 8.0
    }
}
