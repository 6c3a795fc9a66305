//! Servers that the user was warned of.

use std::collections::HashSet;

use parking_lot::Mutex;

/// Servers of which it was said in this run.
#[derive(Default)]
pub(crate) struct Warned(Mutex<HashSet<String>>);

impl Warned {
    /// Whether it was said of this server before.
    pub(crate) fn was_said(&self, peer: &str) -> bool {
        !self.0.lock().insert(peer.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_once_of_each_server() {
        let warned = Warned::default();
        let said = ["a:21", "b:21", "a:21", "b:21", "b:2811"].map(|peer| !warned.was_said(peer));
        assert_eq!(said, [true, true, false, false, true]);
    }
}
