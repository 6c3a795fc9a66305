//! Sweeps: the same transfer repeated with one setting varied, and the conclusions from that.
//!
//! Every round has each point once, in an order of its own, so that other changes over time affect
//! all points alike. Runs far from the others of their point are marked ([`outliers`]) and left out
//! of the figures, and the figures of all runs are kept beside them. A conclusion about a curve
//! ([`Finding`]) is drawn only if the differences are larger than the spread of the runs can
//! explain.

mod finding;
mod load;
mod model;
mod spread;
mod student;

pub use finding::{Change, Finding, Standing};
pub use model::{Curve, CurvePoint, CurveRun, EndLoad, Knob, Spread, Sweeps, Way};
pub use spread::outliers;
