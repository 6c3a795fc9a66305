//! The client's side of a control connection: it takes commands and received bytes, and returns
//! bytes to send and [`Event`]s.

pub mod answer;
mod session;

pub use session::{Event, Limits, Session, SessionError, SubmitError, Ticket, TraceLine};
