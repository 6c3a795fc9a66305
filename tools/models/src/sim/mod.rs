//! A simulator of tuners in virtual time: goodput as a function of the number of streams, with
//! noise, connection set-up and slow start.
//!
//! It does not simulate packets: it knows the goodput of N streams in the steady state, and the
//! time they take to reach it. That is enough to compare searches, and ten thousand times faster.

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
