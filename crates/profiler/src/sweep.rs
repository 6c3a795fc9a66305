//! Sweeps: the same transfer again and again with one setting changed, and what can be said of that.
//!
//! Every round has each point once, in an order of its own, so that whatever else changes meanwhile meets all points alike.
//! Runs far from the others of their point are marked and kept out of the figures ([`outliers`]), with the figures of
//! all runs beside them; what is said of a curve ([`Finding`]) is said only where the differences are larger than the
//! spread of the runs explains.

mod finding;
mod load;
mod model;
mod spread;
mod student;

pub use finding::{Change, Finding, Standing};
pub use model::{Curve, CurvePoint, CurveRun, EndLoad, Knob, Spread, Sweeps, Way};
pub use spread::outliers;
