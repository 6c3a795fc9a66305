//! Types that every layer of the client uses: requests, errors, events, names and results.
//!
//! They import nothing of the layers above, and open no connection.

pub(crate) mod account;
pub(crate) mod as_text;
pub(crate) mod backoff;
pub(crate) mod cancel;
pub(crate) mod client_limits;
pub(crate) mod entry;
pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod features_reply;
pub(crate) mod filter;
pub(crate) mod gate;
pub(crate) mod glob;
pub(crate) mod job_spec;
pub(crate) mod location;
pub(crate) mod options;
pub(crate) mod quirks;
pub(crate) mod random;
pub(crate) mod slowest;
pub(crate) mod summary;
pub(crate) mod threads;
pub(crate) mod tries;
pub(crate) mod warned;
pub(crate) mod xdg;
