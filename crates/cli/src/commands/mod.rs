//! One file a command.

pub(crate) mod buffers;
pub(crate) mod ca;
pub(crate) mod cat;
pub(crate) mod clean;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod cp;
pub(crate) mod doctor;
pub(crate) mod du;
pub(crate) mod find;
pub(crate) mod globus_url_copy;
pub(crate) mod known_hosts;
pub(crate) mod lab;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod mkdir;
pub(crate) mod model;
pub(crate) mod mv;
pub(crate) mod passwd;
pub(crate) mod profile;
pub(crate) mod profile_report;
pub(crate) mod proxy;
pub(crate) mod rm;
pub(crate) mod serve;
pub(crate) mod stat;
pub(crate) mod sum;
