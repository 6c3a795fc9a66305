//! TLS (RFC 4217): curl and lftp with our server, our client with vsftpd and with our server, and what either refuses.
#![allow(clippy::unwrap_used)]

mod certificates;
mod client;
mod filezilla;
mod foreign;
mod in_clear;
mod liar;
mod revocation;
mod server;
mod site;
mod terminal;
