//! The session and the host as an operation sees them.

use std::sync::Arc;

use crate::host::Host;
use crate::host::transfer_log::Record;
use crate::session::context::Context;
use crate::session::dialogue::{Dialogue, Permit};

/// The session and the host, lent to one operation.
pub(crate) struct Job<'a> {
    pub(crate) host: &'a Arc<Host>,
    pub(crate) dialogue: Dialogue<'a>,
    pub(crate) context: &'a mut Context,
    pub(crate) record: &'a mut Option<Box<Record>>,
    /// Held by operations that can take long.
    pub(crate) permit: Option<&'a dyn Permit>,
}
