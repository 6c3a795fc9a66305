//! Whether a host is ready for a link of some rate and round trip, and making it so.
//!
//! [`checks`] compares a host's [`Facts`] with what sites that move data over such links have found to be needed
//! (ESnet's and OSG's published host tuning); [`Changes`] are the settings among it that can be written; a
//! [`Journal`] keeps the old values, so that [`Journal::restore`] brings back exactly those, also when the program or
//! the machine died in between. A [`Trial`] sets and takes back settings in turn, and [`Judgement`] says from the rates
//! that were reached whether they are worth keeping.
//!
//! Values are only ever raised: a host that is set up for more is ready.

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

/// What a host should be ready for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// Bytes per second.
    pub rate: f64,
    /// Round trip, in seconds.
    pub rtt: f64,
}

impl Goal {
    /// Rate times round trip: what is on its way when the link is full, in bytes.
    pub fn bdp(&self) -> f64 {
        self.rate * self.rtt
    }

    /// Bits per second.
    pub fn bits(&self) -> f64 {
        self.rate * 8.0
    }
}
