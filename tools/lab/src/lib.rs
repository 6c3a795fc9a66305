//! The WAN lab: real programs and real kernel TCP in network namespaces, joined by an emulated
//! path.

mod disk;
pub mod emulator;
pub mod library;
pub mod matches;
#[allow(unsafe_code)]
mod netns;
mod record;
pub mod report;
pub mod results;
pub mod run;
pub mod scenario;
pub mod sweep;
