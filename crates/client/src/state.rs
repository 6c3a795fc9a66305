//! Journals of transfers to servers. A journal records the ranges that the server is known to have,
//! and is kept under `$XDG_STATE_HOME/ropewalk` so that a later run can resume.
//!
//! There is one journal for each destination. A failure to write it does not fail the transfer,
//! which then cannot be resumed.

mod claim;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::{Duration, SystemTime};

use bstr::BString;
use ropewalk_files::{BESIDE, OnDisk};
use ropewalk_protocol::range::RangeSet;
use ropewalk_storage::checksum::{Algorithm, Hasher};
use serde::{Deserialize, Serialize};

use crate::model::xdg::state_directory;
use crate::path_defaults::SMALL;
use crate::task::Task;

/// The directory of the journals. Without a home directory no journal is kept.
pub(crate) struct States {
    directory: Option<PathBuf>,
    /// Old journals are removed once in a run.
    expired: Once,
    claims: Arc<claim::Claims>,
}

/// Releases a journal when it is dropped.
pub(crate) struct LetGo(Arc<claim::Claims>, PathBuf);

impl Drop for LetGo {
    fn drop(&mut self) {
        self.0.let_go(&self.1);
    }
}

/// A journal that was not written to for this long is removed. By then the copy will hardly be
/// resumed, and the journal may no longer agree with the destination.
const KEPT: Duration = Duration::from_hours(30 * 24);

/// The journal of one file. It is found by its destination, and is valid only for this source, size
/// and modification time.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    version: u32,
    source: String,
    destination: String,
    size: Option<u64>,
    modified: Option<i64>,
    /// Each range ends before its second number.
    present: Vec<(u64, u64)>,
    /// The tag of the part file's name, if it has one.
    part: Option<u64>,
}

impl States {
    pub(crate) fn new(given: Option<&Path>) -> Self {
        let directory = state_directory(given);
        Self { directory, expired: Once::new(), claims: Arc::default() }
    }

    /// The ranges that the destination was last known to have of exactly this source; `None` if
    /// nothing is known.
    fn load(&self, task: &Task) -> Option<RangeSet> {
        let mut state = State::read(&self.path(task)?)?;
        let present = std::mem::take(&mut state.present).into_iter().map(|(start, end)| start..end).collect();
        (state == State::of(task, &RangeSet::new())).then_some(present)
    }

    /// Chooses the name of the part file before an upload starts, and returns the ranges that are
    /// known to be at the server. `locks` means that the server does not let two uploads write to
    /// one part file.
    pub(crate) fn claim(&self, task: &mut Task, resumable: bool, locks: bool) -> Option<RangeSet> {
        let journal = if resumable { self.path(task) } else { None };
        task.part = match &journal {
            _ if locks => None,
            Some(journal) => {
                let known = || State::read(journal).and_then(|state| state.part);
                Some(self.claims.of_journal(journal, || known().or(task.part)))
            }
            // A part file that was started with a journal keeps its name.
            None => task.part.or_else(|| Some(self.claims.of_run(self.directory.as_deref()))),
        };
        if journal.is_some_and(|journal| locks || self.claims.has(&journal)) { self.load(task) } else { None }
    }

    /// Records the ranges. A transfer works without a journal, so a failure is only logged.
    pub(crate) fn save(&self, task: &Task, present: &RangeSet) {
        if let Err(error) = self.try_save(task, present) {
            tracing::warn!(%error, "cannot keep a journal: an interrupted transfer will begin anew");
        }
    }

    fn try_save(&self, task: &Task, present: &RangeSet) -> io::Result<()> {
        let Some(path) = self.path(task) else { return Ok(()) };
        if task.part.is_some() && !self.claims.has(&path) {
            // Another run has the journal.
            return Ok(());
        }
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
            self.expired.call_once(|| expire(directory, SystemTime::now()));
        }
        let text = serde_json::to_vec(&State::of(task, present))?;
        // The journal reveals locations of the user's data, so it is private.
        ropewalk_files::replace(&path, &text, 0o600, OnDisk::Later)
    }

    pub(crate) fn remove(&self, task: &Task) {
        // Small files have no journal.
        if task.size.is_some_and(|size| size <= SMALL) {
            return;
        }
        let Some(path) = self.path(task) else { return };
        if task.part.is_none() || self.claims.has(&path) {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(%error, "cannot remove a journal");
                }
                _ => {}
            }
        }
        self.claims.release(&path);
    }

    /// Keeps the journal for a later run, and releases it in this one when the result is dropped.
    pub(crate) fn let_go(&self, task: &Task) -> Option<LetGo> {
        Some(LetGo(self.claims.clone(), self.path(task)?))
    }

    fn path(&self, task: &Task) -> Option<PathBuf> {
        // There is one journal for each destination, whatever the source. So no journal remains
        // that describes a part file which another source has overwritten since.
        let mut hasher = Hasher::new(Algorithm::Sha256);
        hasher.update(&task.destination.far_key());
        if let Some(user) = task.destination.user() {
            // The same path beneath the home directory of another user is another destination.
            hasher.update(b"\0");
            hasher.update(&user);
        }
        Some(self.directory.as_ref()?.join(&hasher.finish()[..32]).with_extension("json"))
    }
}

/// Removes journals that are too old, and files that interrupted writes have left.
fn expire(directory: &Path, now: SystemTime) {
    let age = |path: &Path| now.duration_since(fs::symlink_metadata(path).ok()?.modified().ok()?).ok();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // Other files in the directory are left alone. Names of journals have 32 digits and an
        // extension.
        let ours = name.split_once('.').is_some_and(|(stem, ending)| {
            stem.len() == 32
                && stem.bytes().all(|b| b.is_ascii_hexdigit())
                // Earlier versions used the last one.
                && (["json", "lock", crate::finished::ENDING].contains(&ending) || ending.starts_with("new-"))
        });
        let ours = ours || name.starts_with(BESIDE);
        if !ours || age(&path).is_none_or(|age| age <= KEPT) {
            continue;
        }
        // A lock that is held shows that the lock file or its journal is in use. A process that
        // takes the lock next sees that the file is gone.
        let lock = path.with_extension("lock");
        let kept = name.ends_with(".lock") || name.ends_with(".json");
        let held = if kept { claim::take(&lock) } else { None };
        if kept && held.is_none() {
            continue;
        }
        // Another run may have removed the file, or written to it in the meantime.
        if age(&path).is_some_and(|age| age > KEPT) {
            tracing::debug!(path = %path.display(), "an old journal is forgotten");
            let _ = fs::remove_file(path);
        }
        if held.is_some() {
            let _ = fs::remove_file(lock);
        }
    }
}

impl State {
    fn read(journal: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(journal).ok()?).ok()
    }

    fn of(task: &Task, present: &RangeSet) -> Self {
        Self {
            version: 2,
            source: task.identity(),
            destination: BString::from(task.destination.far_key()).to_string(),
            size: task.size,
            modified: task.modified,
            present: present.iter().map(|r| (r.start, r.end)).collect(),
            part: task.part,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::place::Place;

    fn task(modified: i64) -> Task {
        let local =
            |p: &str| Place::Local(ropewalk_protocol::path::VirtualPath::parse(p.as_bytes()).unwrap());
        Task { modified: Some(modified), ..Task::new(0, local("/a"), local("/b")) }
    }

    #[test]
    fn remembers_only_the_same_source() {
        let dir = tempfile::tempdir().unwrap();
        let states = States::new(Some(&dir.path().join("deep/er")));
        let present: RangeSet = [0..10, 20..30].into_iter().collect();
        assert_eq!(states.load(&task(1)), None);
        states.save(&task(1), &present);
        assert_eq!(states.load(&task(1)), Some(present.clone()));
        assert_eq!(states.load(&task(2)), None);
        // The same holds for another file of that name and size from the same second.
        assert_eq!(states.load(&Task { stamp: 7, ..task(1) }), None);
        // With another source for the same destination, the journal of the first one is invalid.
        let place = Place::Local(ropewalk_protocol::path::VirtualPath::parse(b"/other").unwrap());
        let other = Task { source: place, ..task(1) };
        assert_eq!(states.load(&other), None);
        states.save(&other, &RangeSet::new());
        assert_eq!(states.load(&task(1)), None);
        states.save(&task(1), &present);
        states.remove(&task(1));
        assert_eq!(states.load(&task(1)), None);
        states.remove(&task(1));
    }

    #[test]
    fn old_journals_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let at =
            |path: &str| Place::Local(ropewalk_protocol::path::VirtualPath::parse(path.as_bytes()).unwrap());
        let other = Task::new(1, at("/c"), at("/d"));
        States::new(Some(dir.path())).save(&other, &RangeSet::new());
        let journal = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
        fs::copy(&journal, dir.path().join(format!("{BESIDE}77"))).unwrap();
        fs::write(dir.path().join("history.json"), "not a journal").unwrap();
        for entry in fs::read_dir(dir.path()).unwrap().flatten() {
            let file = fs::File::options().write(true).open(entry.path()).unwrap();
            file.set_modified(SystemTime::now() - KEPT - Duration::from_hours(1)).unwrap();
        }
        let states = States::new(Some(dir.path()));
        // Reading removes no journals, because the copy may be resumed after all.
        assert!(states.load(&other).is_some());
        states.save(&task(1), &RangeSet::new());
        assert!(states.load(&other).is_none() && states.load(&task(1)).is_some());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn sessions_of_one_file_tell_of_it_at_the_same_time() {
        let dir = tempfile::tempdir().unwrap();
        let states = States::new(Some(dir.path()));
        let present: RangeSet = (0..1000).map(|n| 2 * n..2 * n + 1).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| states.try_save(&task(1), &present).unwrap()));
            }
        });
        assert_eq!(states.load(&task(1)), Some(present));
    }

    #[test]
    fn a_damaged_journal_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let states = States::new(Some(dir.path()));
        states.save(&task(1), &RangeSet::new());
        let file = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
        fs::write(file, b"{").unwrap();
        assert_eq!(states.load(&task(1)), None);
    }
}
