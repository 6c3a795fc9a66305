//! Limits on rates: when each one holds, and how flows divide them.
//!
//! [`Timetable`] is the text of a setting. [`Division`] lends the bytes of limits to flows by
//! weights, and [`Account`] and [`Allowance`] pass them on to another process. [`Calendar`] has the
//! reservations of parts of limits. Nothing here does
//! I/O or reads a clock: the caller passes the time in.

#![forbid(unsafe_code)]

mod calendar;
mod division;
mod grants;
mod shares;
mod timetable;

pub use calendar::{Booking, Calendar, Capacity, Refusal, next_change};
pub use division::{Division, FlowId, FlowSpec, LimitSpec, Mark};
pub use grants::{Account, Allowance, Grant, Purse, Spent};
pub use timetable::{LocalTime, Timetable, TimetableError};
