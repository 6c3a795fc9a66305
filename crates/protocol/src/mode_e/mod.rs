//! Extended block mode, MODE E (GFD.20 section 3.4): the header, and both sides of a transfer without I/O.
//!
//! Every block says where its payload belongs, so blocks may travel over any number of connections in any order.
//! A connection ends its part with EOD; one EOF, on any of them, says how many EODs there are in all.

mod header;
mod receiver;
mod sender;

pub use header::{Descriptor, Header};
pub use receiver::{End, ReceiveError, Receiver, StreamReceiver, Want};
pub use sender::{Block, Next, Rate, SendError, Sender, StreamId};

#[cfg(test)]
mod tests;
