//! Results of earlier transfers by path: `paths.json` beside the journals.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ropewalk_files::OnDisk;
use ropewalk_tuning::tuner::Prior;
use serde::{Deserialize, Deserializer, Serialize};

use super::stack_choice::Compared;
use crate::model::xdg::state_directory;

const NAME: &str = "paths.json";
/// The file that a program locks while it changes the other one. It is never removed.
const LOCK: &str = "paths.lock";
/// Others hold the lock for as long as a small file takes to write, unless they are stopped. Then
/// the results of this run are not worth a longer wait.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
const WAIT: Duration = Duration::from_millis(5);
const VERSION: u32 = 1;
/// Most paths; the oldest are dropped.
const MOST: usize = 1000;
/// A driver that was better than TCP is used again for so many seconds; one that was not is tried
/// again after fewer, because paths begin to lose packets.
const OLDEST_STACK: u64 = 30 * 86_400;
const TCP_AGAIN: u64 = 86_400;
/// The usual way of data connections that was blocked is tried again after so many seconds.
const TRIED_AGAIN: u64 = 86_400;
/// A larger file was not written by this program.
const LARGEST: u64 = 1 << 20;

pub(super) struct Memory {
    directory: Option<PathBuf>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Paths {
    version: u32,
    #[serde(deserialize_with = "readable")]
    paths: BTreeMap<String, Known>,
    /// Comparisons of drivers. Older versions did not store them.
    #[serde(default, deserialize_with = "readable")]
    stacks: BTreeMap<String, KnownStack>,
    /// Usual ways to the data of servers that were blocked. Older versions did not store them.
    #[serde(default, deserialize_with = "readable")]
    blocked: BTreeMap<String, KnownBlock>,
}

/// Results of an earlier transfer on a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Learnt {
    pub(super) prior: Prior,
    /// The highest rate of one connection, in bytes per second; 0: unknown.
    pub(super) fastest: f64,
    /// The number of streams at that time; 0: unknown.
    pub(super) fastest_of: u32,
}

/// The stored results of one path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Known {
    streams: u32,
    bits_per_second: f64,
    /// The highest rate of one connection. Older versions did not store it.
    #[serde(default)]
    connection_bits_per_second: f64,
    /// The number of streams at that time.
    #[serde(default)]
    connection_streams: u32,
    min_rtt_seconds: Option<f64>,
    /// Seconds since 1970.
    at: u64,
}

/// The stored comparison of the drivers of one path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct KnownStack {
    /// The better driver.
    stack: String,
    tcp_bits_per_second: f64,
    other_bits_per_second: f64,
    /// Seconds since 1970.
    at: u64,
}

/// The usual way of data connections to a server could not be used.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct KnownBlock {
    /// Seconds since 1970.
    at: u64,
}

/// An entry with its time.
trait Dated {
    fn at(&self) -> u64;
    fn set_at(&mut self, at: u64);
}

impl Dated for Known {
    fn at(&self) -> u64 {
        self.at
    }

    fn set_at(&mut self, at: u64) {
        self.at = at;
    }
}

impl Dated for KnownStack {
    fn at(&self) -> u64 {
        self.at
    }

    fn set_at(&mut self, at: u64) {
        self.at = at;
    }
}

impl Dated for KnownBlock {
    fn at(&self) -> u64 {
        self.at
    }

    fn set_at(&mut self, at: u64) {
        self.at = at;
    }
}

impl Memory {
    pub(super) fn new(given: Option<&Path>) -> Self {
        Self { directory: state_directory(given) }
    }

    /// The results for this path, unless they are invalid.
    pub(super) fn recall(&self, path: &str) -> Option<Learnt> {
        let known = *self.read().filter(|all| all.version == VERSION)?.paths.get(path)?;
        let sound = (1..=ropewalk_tuning::tuner::MAX_STREAMS).contains(&known.streams)
            && (8.0..=8e13).contains(&known.bits_per_second)
            && known.min_rtt_seconds.is_none_or(|rtt| (1e-6..=60.0).contains(&rtt));
        let prior = Prior {
            streams: known.streams,
            rate: known.bits_per_second / 8.0,
            min_rtt: known.min_rtt_seconds,
            // If the clock was set back, the entry counts as new.
            age: now().saturating_sub(known.at) as f64,
        };
        let fastest = Some(known.connection_bits_per_second / 8.0).filter(|rate| (0.0..=1e13).contains(rate));
        let (fastest, fastest_of) = (fastest.unwrap_or_default(), known.connection_streams);
        sound.then_some(Learnt { prior, fastest, fastest_of })
    }

    /// The comparison of drivers on this path, unless it is invalid or old.
    pub(super) fn recall_stack(&self, path: &str) -> Option<Compared> {
        let known = self.read().filter(|all| all.version == VERSION)?.stacks.remove(path)?;
        let oldest = if known.stack == "tcp" { TCP_AGAIN } else { OLDEST_STACK };
        let rates = [known.tcp_bits_per_second, known.other_bits_per_second];
        let sound = rates.iter().all(|rate| (0.0..=8e13).contains(rate));
        (sound && now().saturating_sub(known.at) < oldest).then_some(Compared {
            stack: known.stack,
            tcp_rate: rates[0] / 8.0,
            other_rate: rates[1] / 8.0,
        })
    }

    /// Whether this way of data connections was blocked less than a day ago.
    pub(super) fn recall_blocked(&self, way: &str) -> bool {
        let known = self.read().filter(|all| all.version == VERSION);
        let known = known.and_then(|mut all| all.blocked.remove(way));
        known.is_some_and(|known| now().saturating_sub(known.at) < TRIED_AGAIN)
    }

    /// Stores that this way of data connections is blocked.
    pub(super) fn keep_blocked(&self, way: &str) {
        let stored = self.change(|all| {
            all.blocked.insert(way.to_owned(), KnownBlock { at: now() });
        });
        if let Err(error) = stored {
            tracing::warn!(%error, "the way of data connections could not be stored");
        }
    }

    /// Stores results. Transfers also work without them, so that a failure is only logged.
    pub(super) fn keep(&self, found: &[(String, Learnt)], stacks: &[(String, Compared)]) {
        if found.is_empty() && stacks.is_empty() {
            return;
        }
        if let Err(error) = self.try_keep(found, stacks) {
            tracing::warn!(%error, "the results for the path could not be stored");
        }
    }

    fn try_keep(&self, found: &[(String, Learnt)], stacks: &[(String, Compared)]) -> io::Result<()> {
        self.change(|all| Self::insert(all, found, stacks))
    }

    fn insert(all: &mut Paths, found: &[(String, Learnt)], stacks: &[(String, Compared)]) {
        for (path, Learnt { prior, fastest, fastest_of }) in found {
            let known = Known {
                streams: prior.streams,
                bits_per_second: 8.0 * prior.rate,
                connection_bits_per_second: 8.0 * fastest,
                connection_streams: *fastest_of,
                min_rtt_seconds: prior.min_rtt,
                at: now(),
            };
            all.paths.insert(path.clone(), known);
        }
        for (path, Compared { stack, tcp_rate, other_rate }) in stacks {
            let known = KnownStack {
                stack: stack.clone(),
                tcp_bits_per_second: 8.0 * tcp_rate,
                other_bits_per_second: 8.0 * other_rate,
                at: now(),
            };
            all.stacks.insert(path.clone(), known);
        }
    }

    /// Changes the file, which other runs may change at the same time. Readers need no lock,
    /// because the file is replaced atomically.
    fn change(&self, change: impl FnOnce(&mut Paths)) -> io::Result<()> {
        let Some(directory) = &self.directory else { return Ok(()) };
        fs::create_dir_all(directory)?;
        let _lock = Lock::take(&directory.join(LOCK))?;
        let mut all = self.read().unwrap_or_default();
        if all.version > VERSION {
            return Err(io::Error::new(io::ErrorKind::Unsupported, format!("{NAME} is of a newer version")));
        }
        all.version = VERSION;
        change(&mut all);
        drop_oldest(&mut all.paths);
        drop_oldest(&mut all.stacks);
        drop_oldest(&mut all.blocked);
        // The file reveals where a user has data.
        let text = serde_json::to_vec_pretty(&all)?;
        ropewalk_files::replace(&directory.join(NAME), &text, 0o600, OnDisk::Later)
    }

    fn read(&self) -> Option<Paths> {
        let path = self.directory.as_ref()?.join(NAME);
        // A pipe or a device may be endless, or block.
        if !fs::metadata(&path).ok()?.is_file() {
            return None;
        }
        let mut text = Vec::new();
        fs::File::open(path).ok()?.take(LARGEST + 1).read_to_end(&mut text).ok()?;
        if text.len() as u64 > LARGEST {
            return None;
        }
        serde_json::from_slice(&text).ok()
    }
}

/// The right to change the file, until this is dropped.
struct Lock(File);

impl Lock {
    fn take(path: &Path) -> io::Result<Self> {
        let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(path)?;
        let deadline = Instant::now() + LONGEST_WAIT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self(file)),
                // The file system has no locks. Then the last one of several runs wins.
                Err(TryLockError::Error(error)) => {
                    tracing::debug!(%error, "{LOCK} cannot be locked");
                    return Ok(Self(file));
                }
                Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                    return Err(io::Error::new(io::ErrorKind::WouldBlock, format!("{LOCK} stays locked")));
                }
                Err(TryLockError::WouldBlock) => thread::sleep(WAIT),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A child process that is just being started has a copy of the descriptor, so that closing
        // the file would not release the lock.
        let _ = self.0.unlock();
    }
}

/// Reads the file; an invalid entry does not affect the others.
fn readable<'de, D, K>(source: D) -> Result<BTreeMap<String, K>, D::Error>
where
    D: Deserializer<'de>,
    K: Dated + for<'k> Deserialize<'k>,
{
    let entries = BTreeMap::<String, serde_json::Value>::deserialize(source)?;
    let known = entries.into_iter().filter_map(|(path, entry)| {
        let mut known: K = serde_json::from_value(entry).ok()?;
        // The clock was ahead: the entry ages from now on.
        known.set_at(known.at().min(now()));
        Some((path, known))
    });
    Ok(known.collect())
}

fn drop_oldest<K: Dated>(entries: &mut BTreeMap<String, K>) {
    while entries.len() > MOST {
        let Some(oldest) = entries.iter().min_by_key(|(_, known)| known.at()) else { return };
        let oldest = oldest.0.clone();
        entries.remove(&oldest);
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn prior(streams: u32) -> Learnt {
        let prior = Prior { streams, rate: 1e6, min_rtt: Some(0.1), age: 0.0 };
        Learnt { prior, fastest: 5e5, fastest_of: 2 }
    }

    #[test]
    fn remembers_paths() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::new(Some(&dir.path().join("a/b")));
        assert_eq!(memory.recall("x"), None);
        memory.keep(&[("x".into(), prior(7)), ("y".into(), prior(9))], &[]);
        memory.keep(&[("x".into(), prior(8))], &[]);
        assert_eq!(
            memory.recall("x").map(|p| (p.prior.streams, p.prior.rate, p.fastest, p.fastest_of)),
            Some((8, 1e6, 5e5, 2))
        );
        assert_eq!(memory.recall("y").map(|p| p.prior.streams), Some(9));
        let mode = fs::metadata(dir.path().join("a/b").join(NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn runs_that_end_at_the_same_time_keep_the_results_of_each_other() {
        const WRITERS: usize = 8;
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path();
        let name = |writer: usize, at: usize| format!("{writer} {at}");
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                scope.spawn(move || {
                    // Each run has its own memory.
                    for at in 0..10 {
                        let memory = Memory::new(Some(directory));
                        match at % 2 {
                            0 => memory.keep(&[(name(writer, at), prior(7))], &[]),
                            _ => memory.keep_blocked(&name(writer, at)),
                        }
                    }
                });
            }
        });
        let memory = Memory::new(Some(dir.path()));
        for (writer, at) in (0..WRITERS).flat_map(|writer| (0..10).map(move |at| (writer, at))) {
            let name = name(writer, at);
            let kept =
                if at % 2 == 0 { memory.recall(&name).is_some() } else { memory.recall_blocked(&name) };
            assert!(kept, "{name}");
        }
    }

    #[test]
    fn a_bad_entry_costs_no_other_and_a_newer_file_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::new(Some(dir.path()));
        let file = dir.path().join(NAME);
        let good = r#"{"streams":7,"bits_per_second":8e6,"min_rtt_seconds":0.1,"at":99999999999}"#;
        let text = format!(r#"{{"version":1,"paths":{{"bad":{{"streams":-7}},"good":{good}}}}}"#);
        fs::write(&file, &text).unwrap();
        memory.keep(&[("other".into(), prior(9))], &[]);
        assert_eq!(memory.recall("bad"), None);
        assert_eq!(memory.recall("good").map(|known| known.prior.streams), Some(7));
        assert!(!fs::read_to_string(&file).unwrap().contains("99999999999"));
        let newer = text.replace(r#""version":1"#, r#""version":2"#);
        fs::write(&file, &newer).unwrap();
        memory.keep(&[("other".into(), prior(9))], &[]);
        assert_eq!(memory.recall("good"), None);
        assert_eq!(fs::read_to_string(&file).unwrap(), newer);
    }

    #[test]
    fn what_makes_no_sense_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::new(Some(dir.path()));
        let file = dir.path().join(NAME);
        for nonsense in [
            "",
            "{",
            r#"{"version":2,"paths":{}}"#,
            r#"{"version":1,"paths":{"x":{"streams":0,"bits_per_second":1e6,"min_rtt_seconds":0.1,"at":0}}}"#,
            r#"{"version":1,"paths":{"x":{"streams":9,"bits_per_second":-1,"min_rtt_seconds":0.1,"at":0}}}"#,
            r#"{"version":1,"paths":{"x":{"streams":9,"bits_per_second":1e6,"min_rtt_seconds":1e9,"at":0}}}"#,
        ] {
            fs::write(&file, nonsense).unwrap();
            assert_eq!(memory.recall("x"), None, "{nonsense}");
        }
        // Written by an older version, and with an invalid last number.
        for more in ["", r#","connection_bits_per_second":-1"#] {
            let known = format!(r#""streams":9,"bits_per_second":8e6,"min_rtt_seconds":0.1,"at":0{more}"#);
            fs::write(&file, format!(r#"{{"version":1,"paths":{{"x":{{{known}}}}}}}"#)).unwrap();
            assert_eq!(memory.recall("x").map(|p| (p.prior.streams, p.fastest)), Some((9, 0.0)));
        }
        fs::write(&file, vec![b' '; LARGEST as usize + 1]).unwrap();
        assert_eq!(memory.recall("x"), None);
        // An endless file, and a pipe without a writer.
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
        assert_eq!(memory.recall("x"), None);
        fs::remove_file(&file).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(memory.recall("x"), None);
        fs::remove_file(&file).unwrap();
        // An invalid file does not prevent later writes.
        fs::write(&file, "{").unwrap();
        memory.keep(&[("x".into(), prior(7))], &[]);
        assert!(memory.recall("x").is_some());
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::new(Some(dir.path()));
        let many: Vec<_> = (0..MOST + 5).map(|n| (format!("{n:05}"), prior(2))).collect();
        memory.keep(&many, &[]);
        assert_eq!(memory.read().unwrap().paths.len(), MOST);
    }

    #[test]
    fn blocked_way_is_remembered_for_a_day() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::new(Some(dir.path()));
        memory.keep_blocked("tcp data.example:2811");
        memory.keep(&[("x".into(), prior(7))], &[]);
        assert!(memory.recall_blocked("tcp data.example:2811"));
        assert!(!memory.recall_blocked("quic data.example:2811"));
        let file = dir.path().join(NAME);
        let mut all = memory.read().unwrap();
        all.blocked.values_mut().for_each(|known| known.at -= TRIED_AGAIN);
        fs::write(&file, serde_json::to_vec(&all).unwrap()).unwrap();
        assert!(!memory.recall_blocked("tcp data.example:2811"));
        memory.keep_blocked("tcp data.example:2811");
        assert!(memory.recall_blocked("tcp data.example:2811"));
        fs::remove_file(&file).unwrap();
        assert!(!memory.recall_blocked("tcp data.example:2811"));
    }

    #[test]
    fn comparison_of_drivers_is_remembered_beside_the_results() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::new(Some(dir.path()));
        let compared = |stack: &str| Compared { stack: stack.into(), tcp_rate: 1e6, other_rate: 5e6 };
        memory.keep(&[("x".into(), prior(7))], &[("x".into(), compared("udt"))]);
        memory.keep(&[], &[("y".into(), compared("tcp"))]);
        assert_eq!(memory.recall_stack("x"), Some(compared("udt")));
        assert_eq!(memory.recall_stack("y"), Some(compared("tcp")));
        assert_eq!(memory.recall("x").map(|known| known.prior.streams), Some(7));
        // Two days later.
        let file = dir.path().join(NAME);
        let mut all = memory.read().unwrap();
        all.stacks.values_mut().for_each(|known| known.at -= 2 * 86_400);
        fs::write(&file, serde_json::to_vec(&all).unwrap()).unwrap();
        assert_eq!((memory.recall_stack("x"), memory.recall_stack("y")), (Some(compared("udt")), None));
    }
}
