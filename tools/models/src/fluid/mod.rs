//! The model in time: windows of groups of connections and the queue of their bottleneck as delay
//! differential equations, after Ito, Ohsaki and Imase, Eq (1).
//!
//! A group of m equal connections with propagation delay tau has the round-trip time R(t) = tau +
//! q(t)/B. According to Eq (1), its window grows by one packet per round trip and shrinks with
//! losses; both depend on the window of one round trip earlier, which is acknowledged now. The
//! history before time 0 is constant. Windows stay between one packet and the group's limit. Times
//! are milliseconds, windows and queues packets, bandwidths packets per millisecond.

mod equilibrium;
mod history;
mod integrate;
mod scenario;

pub use equilibrium::{Equilibrium, equilibrium};
pub use integrate::{Fluid, State};
pub use scenario::{Coupling, Drop, FluidError, Group, Red, Scenario};
