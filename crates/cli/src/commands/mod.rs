//! The commands, each in a file of its own.

pub mod ca;
pub mod cancel;
pub mod cat;
pub mod check;
pub mod clean;
pub mod config;
pub mod cp;
pub mod du;
pub mod find;
pub mod gateway;
pub mod globus_url_copy;
pub mod known_hosts;
pub mod ls;
pub mod mkdir;
pub mod mv;
pub mod node;
pub mod passwd;
pub mod proxy;
pub mod reservations;
pub mod reserve;
pub mod rm;
pub mod serve;
pub mod sites;
pub mod stat;
pub mod sum;
pub mod sync;
