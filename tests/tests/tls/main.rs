//! TLS (RFC 4217): curl and lftp with the Ropewalk server, the Ropewalk client with vsftpd and with
//! its own server, and the connections that either refuses.
#![allow(clippy::unwrap_used)]

mod cleartext_passwords;
mod client;
mod filezilla;
mod foreign;
mod nodes;
mod revocation;
mod rogue_server;
mod server;
mod site;
mod terminal;
