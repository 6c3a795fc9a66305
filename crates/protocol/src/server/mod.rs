//! The server's side of a control connection: bytes and events in, [`Action`]s out.
//!
//! [`Session`] neither reads a clock nor does any I/O. Its host
//! 1. sends [`Session::banner`], and gives [`Session::input`] what the client sends,
//! 2. takes [`Session::poll`] until there is nothing to do,
//! 3. reports the progress of an operation with [`Session::event`], and its end with [`Session::completed`],
//! 4. runs the idle timer of [`Session::phase`].

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

pub use action::*;
pub use config::{Banner, RequiredProtection, SessionConfig, TOKEN_USER};
pub use session::{Phase, Session};
