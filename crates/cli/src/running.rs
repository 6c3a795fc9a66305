//! The running copies of a user: each has a socket by which `ropewalk jobs` lists and changes it.
//!
//! The sockets are in a directory that only the user can enter. A thread of the copy answers one
//! request of one line on each connection. Without such a directory the copy runs all the same, and
//! `jobs` does not see it.

use std::fs::{self, DirBuilder};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use ropewalk_client::{Client, Location, Pair, Timetable, state_directory};
use serde::{Deserialize, Serialize};

use crate::settings::{parse_bandwidth, show_rate};

/// The version of [`Line`].
const SCHEMA: u32 = 1;
/// Time for a request and for its answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// After a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest line, in bytes.
const LONGEST: u64 = 16 << 10;

#[derive(Debug, Deserialize, Serialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Request {
    Show,
    /// `rate` as in `--bandwidth`.
    Limit {
        rate: String,
    },
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Line {
    pub(crate) schema: u32,
    #[serde(flatten)]
    pub(crate) answer: Answer,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub(crate) enum Answer {
    Job(JobStatus),
    Done,
    Refused { reason: String },
}

/// A running copy.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct JobStatus {
    /// The number of its process.
    pub(crate) id: u32,
    /// Seconds since 1970.
    pub(crate) since: u64,
    /// Of its first pair.
    pub(crate) source: String,
    pub(crate) destination: String,
    pub(crate) pairs: usize,
    /// As in `--bandwidth`.
    pub(crate) limit: String,
}

/// The socket of a running copy. Dropping it removes the socket.
pub(crate) struct Running {
    path: PathBuf,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

struct Copy {
    client: Arc<Client>,
    status: Mutex<JobStatus>,
    /// Some data goes from one server to another, and no limit of this program holds for it.
    elsewhere: bool,
}

impl Running {
    /// Answers for a copy of `pairs`, until this is dropped. `None`: it cannot be asked.
    pub(crate) fn start(
        client: &Arc<Client>,
        pairs: &[Pair],
        limit: Option<&Timetable>,
        through_here: bool,
    ) -> Option<Self> {
        Self::listen(client, pairs, limit, through_here).ok()
    }

    fn listen(
        client: &Arc<Client>,
        pairs: &[Pair],
        limit: Option<&Timetable>,
        through_here: bool,
    ) -> io::Result<Self> {
        let directory = own_directory()?;
        let id = std::process::id();
        let (new, path) = (directory.join(format!("{id}.new")), directory.join(format!("{id}.sock")));
        // The number of a process that was killed comes again.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Before it listens, a socket refuses connections like one whose process was killed, and
        // [`jobs`] would remove it. So it gets its name afterwards.
        let listener = UnixListener::bind(&new)?;
        fs::rename(&new, &path).inspect_err(|_| drop(fs::remove_file(&new)))?;
        let remote = |place: &Location| matches!(place, Location::Remote(_));
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let status = JobStatus {
            id,
            since,
            source: pairs.first().map(|pair| name(&pair.source)).unwrap_or_default(),
            destination: pairs.first().map(|pair| name(&pair.destination)).unwrap_or_default(),
            pairs: pairs.len(),
            limit: show_rate(limit),
        };
        let elsewhere =
            !through_here && pairs.iter().any(|pair| remote(&pair.source) && remote(&pair.destination));
        let copy = Copy { client: client.clone(), status: Mutex::new(status), elsewhere };
        let ended = Arc::new(AtomicBool::new(false));
        let seen = ended.clone();
        let run = move || {
            for stream in listener.incoming() {
                if seen.load(Ordering::Relaxed) {
                    return;
                }
                match stream {
                    // A client that has gone needs no answer.
                    Ok(stream) => drop(copy.serve(&stream)),
                    // For instance for lack of descriptors.
                    Err(_) => thread::sleep(PAUSE),
                }
            }
        };
        let thread = thread::Builder::new().name("jobs".into()).spawn(run);
        let thread = Some(thread.inspect_err(|_| drop(fs::remove_file(&path)))?);
        Ok(Self { path, ended, thread })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Wakes the thread.
        let woken = UnixStream::connect(&self.path).is_ok();
        let _ = fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

impl Copy {
    fn serve(&self, stream: &UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let answer = match read(stream)? {
            Some(Request::Show) => Answer::Job(self.status.lock().clone()),
            Some(Request::Limit { rate }) => match self.limit(&rate) {
                Ok(()) => Answer::Done,
                Err(reason) => Answer::Refused { reason },
            },
            None => Answer::Refused { reason: "not a request".to_owned() },
        };
        write(stream, &Line { schema: SCHEMA, answer })
    }

    fn limit(&self, rate: &str) -> Result<(), String> {
        let limit = parse_bandwidth(rate)?;
        if self.elsewhere {
            return Err("its data goes from one server to another, where no limit of this copy holds: \
                        only a copy with --through-here can be limited"
                .to_owned());
        }
        self.client.set_bandwidth(limit.as_ref());
        self.status.lock().limit = show_rate(limit.as_ref());
        Ok(())
    }
}

/// The name of a place, without a password.
fn name(place: &Location) -> String {
    match place {
        Location::Local(path) => path.display().to_string(),
        Location::Remote(url) => url.to_string(),
        Location::Standard => "-".to_owned(),
        Location::Measure { .. } => "no storage".to_owned(),
    }
}

/// All running copies of this user, by their numbers.
///
/// # Errors
/// The directory of the sockets cannot be read.
pub(crate) fn jobs() -> io::Result<Vec<JobStatus>> {
    let directory = directory().ok_or(io::ErrorKind::NotFound)?;
    let entries = match fs::read_dir(&directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut jobs = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "sock") {
            continue;
        }
        match ask_at(&path, &Request::Show) {
            Ok(Answer::Job(job)) => jobs.push(job),
            // Its process was killed.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => drop(fs::remove_file(&path)),
            // It ends.
            _ => {}
        }
    }
    jobs.sort_by_key(|job| job.id);
    Ok(jobs)
}

/// Asks one running copy.
///
/// # Errors
/// There is none with this number, or it does not answer.
pub(crate) fn ask(id: u32, request: &Request) -> io::Result<Answer> {
    let directory = directory().ok_or(io::ErrorKind::NotFound)?;
    ask_at(&directory.join(format!("{id}.sock")), request)
}

fn ask_at(path: &Path, request: &Request) -> io::Result<Answer> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write(&stream, request)?;
    let line: Option<Line> = read(&stream)?;
    line.map(|line| line.answer).ok_or_else(|| io::Error::other("the answer is not understood"))
}

/// A line of JSON; `None`: something else.
fn read<T: for<'a> Deserialize<'a>>(stream: &UnixStream) -> io::Result<Option<T>> {
    let mut line = String::new();
    BufReader::new(stream.take(LONGEST)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line).ok())
}

fn write(mut stream: &UnixStream, value: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    stream.write_all(&text)
}

/// The directory of the sockets: `ropewalk/jobs` in `XDG_RUNTIME_DIR`, or else in the state
/// directory.
fn directory() -> Option<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    Some(runtime.map(|path| path.join("ropewalk")).or_else(|| state_directory(None))?.join("jobs"))
}

/// The directory, which is made if it is missing. It is the user's own.
fn own_directory() -> io::Result<PathBuf> {
    let path = directory().ok_or(io::ErrorKind::NotFound)?;
    // A home that does not exist is not made.
    if path.ancestors().find(|path| path.exists()).is_none_or(|nearest| nearest == Path::new("/")) {
        return Err(io::ErrorKind::NotFound.into());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
    let found = fs::symlink_metadata(&path)?;
    let own = found.uid() == rustix::process::geteuid().as_raw();
    match found.is_dir() && own && found.mode() & 0o077 == 0 {
        true => Ok(path),
        false => Err(io::Error::other(format!("{} may be used by others", path.display()))),
    }
}
