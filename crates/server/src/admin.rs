//! The admin socket: an administrator of this host looks at a running server and controls it.
//!
//! A client writes one [`Request`] as a line of JSON, and gets lines of JSON with one [`Answer`]
//! each. The last one says that there are no more, or why the request is refused. The server obeys
//! root and its own user only. One thread answers, one client at a time; requests and times are
//! bounded, and sessions do not wait for it. The socket is removed when the server ends.

mod answers;
mod client;
mod message;
mod socket;

pub(crate) use answers::Reload;
pub use client::{AdminError, ask};
pub use message::{
    Answer, LimitStatus, Line, NodeStatus, Request, ReservationStatus, ResourceStatus, SCHEMA, SessionStatus,
};
pub(crate) use socket::AdminSocket;
