//! Extended block mode, MODE E (GFD.20 section 3.4): the block header, and both sides of a transfer
//! without I/O.
//!
//! Every block states the position of its payload, so blocks may travel over any number of
//! connections in any order. Each connection ends with EOD. One EOF, on any of the connections,
//! states the total number of EODs.

mod header;
mod receiver;
mod resend;
#[cfg(test)]
mod resend_tests;
#[cfg(test)]
mod schedule_tests;
mod sender;
#[cfg(test)]
mod stripe_tests;

pub use header::{Descriptor, Header};
pub use receiver::{End, ReceiveError, Receiver, StreamReceiver, Want};
pub use resend::Backlog;
pub use sender::{Block, Next, Rate, SendError, Sender, StreamId};

#[cfg(test)]
mod tests;
