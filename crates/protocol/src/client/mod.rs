//! The client's side of a control connection: commands and bytes in, bytes and [`Event`]s out.

pub mod answer;
mod session;

pub use session::{Event, Limits, Session, SessionError, SubmitError, Ticket, TraceLine};
