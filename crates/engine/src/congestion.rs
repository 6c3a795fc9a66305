//! The congestion control of data connections that are still to be made.

use std::sync::{Arc, Mutex, PoisonError};

/// The TCP congestion control of a data channel's connections that are still to be made: a handle for any thread.
/// `None` is the host's own, or that of the listener where peers connect. A name that the host does not have or does not allow is told in a warning and changes nothing.
#[derive(Clone, Debug, Default)]
pub struct Congestion(Arc<Mutex<Option<String>>>);

impl Congestion {
    pub(crate) fn new(name: Option<String>) -> Self {
        Self(Arc::new(Mutex::new(name)))
    }

    pub fn set(&self, name: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = name;
    }

    pub fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
