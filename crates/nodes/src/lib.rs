//! A front end and its data nodes.
//!
//! A node connects to each of its front ends, proves that it has the join token, and holds a lease
//! in the [`Registry`] as long as it renews it. It keeps a few connections ready ([`Link`]); the
//! front end takes one for each session whose data a node is to move, and sends [`Order`]s over it.
//! This crate has no knowledge of FTP, files or data connections: the server crate carries out the
//! orders.

#![forbid(unsafe_code)]
// Input from a peer must never end the program.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::panic))]

mod accounts;
mod front_end;
mod link;
mod member;
mod membership;
mod message;
mod placement;
mod registry;
mod secret;
mod token;
mod wake;

pub use accounts::{ChannelPurse, OpenAccount};
pub use front_end::{Chosen, FrontEnd};
pub use link::{Frame, Link, LinkError};
pub use member::{JoinFailure, Member, Serve};
pub use membership::{Joined, Registered, SessionLease, Spender};
pub use message::{
    ChannelOrder, FileOrder, GsiOrder, MarkOrder, MoveFailure, MoveOrder, Order, Owner, ReceiveOrder, Report,
    SecurityOrder, SendOrder, Sum, TlsIdentity, TlsOrder, TlsProof, Transferred,
};
pub use placement::{Placement, Suits};
pub use registry::{Announcement, JoinError, LEASE, Membership, NodeId, Proposal, RENEWAL, Registry};
pub use secret::Secret;
pub use token::{JoinToken, TokenError};
