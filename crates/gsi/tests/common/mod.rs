//! A site in a temporary directory.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, unused_imports)]

use std::ops::Deref;

pub use ropewalk_gsi::testing::{have, shake};
use tempfile::TempDir;

pub struct Site {
    _directory: TempDir,
    site: ropewalk_gsi::testing::Site,
}

impl Site {
    pub fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let site = ropewalk_gsi::testing::Site::at(directory.path());
        Self { _directory: directory, site }
    }
}

impl Deref for Site {
    type Target = ropewalk_gsi::testing::Site;

    fn deref(&self) -> &Self::Target {
        &self.site
    }
}
