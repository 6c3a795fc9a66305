//! TLS (RFC 4217): curl and lftp with our server, our client with vsftpd and with our server, and what either refuses.
#![allow(clippy::unwrap_used)]

mod certificates;
mod cleartext_passwords;
mod client;
mod filezilla;
mod foreign;
mod revocation;
mod rogue_server;
mod server;
mod site;
mod terminal;
