//! The server's side of a control connection: it takes bytes and events, and returns [`Action`]s.
//!
//! [`Session`] has neither a clock nor I/O. Its host
//!
//! 1. sends [`Session::banner`], and passes the bytes of the client to [`Session::input`],
//! 2. calls [`Session::poll`] until it returns `None`,
//! 3. reports the progress of an operation with [`Session::event`], and its end with
//!    [`Session::completed`],
//! 4. runs the idle timer that [`Session::phase`] requires.

mod action;
mod config;
mod data;
mod dispatch;
mod failure;
mod finish;
mod pending;
mod session;
mod site;
mod state;
mod uploads;

pub use action::*;
pub use config::{Banner, RequiredProtection, SessionConfig, TOKEN_USER};
pub use session::{Phase, Session};
