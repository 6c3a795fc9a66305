//! Sources of an issuer's keys: a file, or documents that the issuer publishes.

mod discovery;
mod https;
mod pinned;

use std::sync::Arc;
use std::time::Instant;

use crate::error::KeysError;
use crate::issuer::{Issuer, KeyPlace};
use crate::jwk::KeySet;

pub(crate) enum Keys {
    Pinned(pinned::Pinned),
    Published(discovery::Discovery),
}

impl Keys {
    pub(crate) fn new(issuer: &Issuer) -> Result<Self, KeysError> {
        Ok(match &issuer.keys {
            KeyPlace::File(path) => Self::Pinned(pinned::Pinned::load(path)?),
            KeyPlace::Discovery { authorities } => {
                let https = https::Https::new(authorities.as_deref())?;
                Self::Published(discovery::Discovery::new(&issuer.url, Box::new(https)))
            }
        })
    }

    /// Returns the keys. If the key `name` is available, they include it.
    pub(crate) fn get(&self, name: Option<&str>, now: Instant) -> Result<Arc<KeySet>, KeysError> {
        match self {
            Self::Pinned(pinned) => pinned.get(),
            Self::Published(published) => published.get(name, now),
        }
    }
}
