//! Sweeps: repeats the transfer with one setting changed.

mod knob;
mod plan;
mod run;
mod size;

pub(crate) use knob::Vary;
pub(crate) use plan::{Design, Plan};
pub(crate) use run::{refusals, run};
