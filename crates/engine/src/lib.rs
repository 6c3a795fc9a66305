//! The data plane: moves byte ranges between one store and a changing set of streams.
//!
//! Used by both roles. It knows ranges, buffers and streams; neither FTP replies nor users.
//! Everything blocks; the thread that calls [`DataChannel::send`] or [`DataChannel::receive`]
//! coordinates the transfer, serves the first stream itself and takes further threads from a
//! [`Pool`] only for further streams.

// Input of a peer must never end the program.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::panic))]

mod ahead;
mod allowance;
mod attendant;
mod backlog;
mod bandwidth;
mod behind;
mod block_reader;
mod block_writer;
mod budget;
mod channel;
mod congestion;
mod connect;
mod control;
mod error;
mod feed;
mod flow;
mod job;
mod ordered_receive;
mod ordered_send;
mod pace;
mod parallelism;
mod pipe;
#[allow(unsafe_code)]
mod pool;
mod progress;
mod receive;
mod receive_blocks;
mod receive_coordinator;
mod receive_shared;
mod receive_waiting;
mod send;
mod send_blocks;
mod send_coordinator;
mod send_shared;
mod settings;
mod shortage;
mod stream_reader;
mod watch;
mod wire;

pub use allowance::GrantedRate;
pub use attendant::{Attendant, Nobody};
pub use bandwidth::{Bandwidth, Limiter};
pub use budget::{Buffer, BufferBudget, MIN_BUFFER};
pub use channel::{DataChannel, Discarded};
pub use congestion::Congestion;
pub use error::{Error, Result};
pub use feed::Feed;
pub use flow::{Flow, Flows, PathSample};
pub use job::{ReceiveJob, Received, SendJob, Sent};
pub use parallelism::Parallelism;
pub use pool::{Pool, Scope};
pub use progress::{Progress, Stage};
pub use settings::ChannelSettings;
