//! The server as clients see it: over loopback, with a client that speaks raw FTP.
#![allow(clippy::unwrap_used, missing_docs)]

mod abort;
mod acl;
mod anonymous;
mod blocks;
mod certificate;
mod checksums;
mod client;
mod drain;
mod false_node;
mod false_nodes;
mod fixture;
mod in_place;
mod limits;
mod listings;
mod logs;
// The measurements of the program.
#[allow(unreachable_pub)]
#[path = "../../../../tools/commands/src/measurements.rs"]
mod measurements;
mod passive;
mod pipes;
mod profile;
mod programs;
mod refused;
mod restart;
mod rules;
mod session;
mod slots;
mod slow;
mod space;
mod stacks;
mod streams;
mod timers;
mod transfers;
mod upload_command;
mod uploads;
mod users;
