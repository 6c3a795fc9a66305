//! Log-in: from a name and a proof to an account, its storage, and the paths that it may use.

pub(crate) mod identity;
pub(crate) mod log_in;
pub(crate) mod login;
pub(crate) mod paths;
pub(crate) mod scope;
pub(crate) mod target;
pub(crate) mod virtual_devices;
