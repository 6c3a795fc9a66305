//! A simulator of tuners in virtual time: landscapes of goodput over streams, with noise, set-up and slow start.
//!
//! It is not a packet simulator: it knows what N streams carry in the steady state, and how long they take to
//! get there. That is enough to compare searches, and ten thousand times faster.

mod arena;
mod evaluate;
mod families;
mod landscape;
mod rng;
mod run;

pub use arena::{Duel, Shares};
pub use evaluate::{Candidate, DEVELOPMENT_SEED, EVALUATION_SEED, Report, Row, Setup, evaluate, mean};
pub use families::{Family, MOST, SECONDS, Scenario};
pub use landscape::{Curve, Ends, PACKET, Path};
pub use rng::Rng;
pub use run::{Outcome, Rival, Step, World, oracle, run, run_shared};
