//! Running uploads by user and file.
//!
//! When a client repeats an upload, it is not refused because of an earlier one whose client is
//! gone: the new upload asks the others whether they still have a client. The table belongs to the
//! host; questions and answers are counters, so that no thread waits for another.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use ropewalk_protocol::path::VirtualPath;

/// The user and the file.
type Key = (String, VirtualPath);

#[derive(Default)]
pub(crate) struct Writers(Mutex<HashMap<Key, Vec<Arc<Writer>>>>);

/// The questions to an upload, and its answers.
#[derive(Default)]
pub(crate) struct Writer {
    asked: AtomicU64,
    answered: AtomicU64,
}

/// An upload that writes its file or waits for it, until it is dropped.
pub(crate) struct Writing<'a> {
    writers: &'a Writers,
    key: Key,
    writer: Arc<Writer>,
    /// The other uploads that were asked, and the number of the question.
    asked: RefCell<Vec<(Arc<Writer>, u64)>>,
}

/// The other uploads to the same file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// At least one of them has a client.
    Stay,
    /// They have not answered yet.
    Asked,
    /// There are none.
    Gone,
}

impl Writers {
    pub(crate) fn begin(&self, user: &str, place: &VirtualPath) -> Writing<'_> {
        let key = (user.to_owned(), place.clone());
        let writer = Arc::new(Writer::default());
        self.0.lock().entry(key.clone()).or_default().push(Arc::clone(&writer));
        Writing { writers: self, key, writer, asked: RefCell::default() }
    }
}

impl Writing<'_> {
    pub(crate) fn writer(&self) -> &Writer {
        &self.writer
    }

    /// Asks each of the other uploads once whether it still has a client.
    pub(crate) fn ask(&self) -> Others {
        let all = self.writers.0.lock();
        let mut asked = self.asked.borrow_mut();
        let mut others = Others::Gone;
        let there = all.get(&self.key).into_iter().flatten();
        for other in there.filter(|other| !Arc::ptr_eq(other, &self.writer)) {
            let before = asked.iter().find(|(one, _)| Arc::ptr_eq(one, other)).map(|(_, number)| *number);
            let number = before.unwrap_or_else(|| {
                let number = other.asked.fetch_add(1, Ordering::AcqRel) + 1;
                asked.push((Arc::clone(other), number));
                number
            });
            if other.answered.load(Ordering::Acquire) >= number {
                return Others::Stay;
            }
            others = Others::Asked;
        }
        others
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut all = self.writers.0.lock();
        if let Some(writers) = all.get_mut(&self.key) {
            writers.retain(|other| !Arc::ptr_eq(other, &self.writer));
            if writers.is_empty() {
                all.remove(&self.key);
            }
        }
    }
}

impl Writer {
    /// Another upload waits for an answer.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire) > self.answered.load(Ordering::Acquire)
    }

    /// Answers all questions up to `asked`: this upload has a client, and continues.
    pub(crate) fn stay(&self, asked: u64) {
        self.answered.fetch_max(asked, Ordering::AcqRel);
    }

    /// The number of questions until now.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn upload_that_answered_once_is_asked_again() {
        let writers = Writers::default();
        let place = VirtualPath::parse(b"/f").unwrap();
        let first = writers.begin("ann", &place);
        assert_eq!(first.ask(), Others::Gone);
        let stranger = writers.begin("bob", &place);
        assert_eq!((first.ask(), stranger.ask()), (Others::Gone, Others::Gone));
        let second = writers.begin("ann", &place);
        assert!(!first.writer().is_asked());
        assert_eq!((second.ask(), second.ask()), (Others::Asked, Others::Asked));
        assert!(first.writer().is_asked());
        first.writer().stay(first.writer().asked());
        assert_eq!(second.ask(), Others::Stay);
        drop(second);
        // An answer holds for one question only.
        let third = writers.begin("ann", &place);
        assert_eq!(third.ask(), Others::Asked);
        assert!(first.writer().is_asked());
        drop(first);
        assert_eq!(third.ask(), Others::Gone);
        drop((third, stranger));
        assert!(writers.0.lock().is_empty());
    }
}
