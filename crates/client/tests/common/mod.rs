//! Helpers that the tests against real servers share.
#![allow(dead_code)]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use ropewalk_client::{Cancel, Event, Location, Options, Pair, Summary, copy, parse_location};
use ropewalk_storage::checksum::{Algorithm, Hasher};
use ropewalk_tests::peers;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};

/// A server with its own root directory, and a directory for local files.
pub(crate) struct Bench {
    pub(crate) server: Server,
    pub(crate) local: Scratch,
    pub(crate) remote: Scratch,
}

impl Bench {
    /// `None` if the server is not installed.
    pub(crate) fn new(kind: Kind) -> Result<Option<Self>> {
        Self::with(kind, |setup| setup)
    }

    pub(crate) fn over_ipv6(kind: Kind) -> Result<Option<Self>> {
        if std::net::TcpListener::bind("[::1]:0").is_err() && peers::skip("no IPv6 on loopback") {
            return Ok(None);
        }
        Self::with(kind, Setup::ipv6)
    }

    pub(crate) fn with(kind: Kind, change: impl Fn(Setup) -> Setup) -> Result<Option<Self>> {
        let program = match kind {
            Kind::Gct => "globus-gridftp-server",
            Kind::Vsftpd => "vsftpd",
            Kind::Proftpd => "proftpd",
            Kind::PureFtpd => "pure-ftpd",
            Kind::Ropewalk => "true",
        };
        if !peers::available(&[program]) {
            return Ok(None);
        }
        let (local, remote) = (Scratch::new()?, Scratch::new()?);
        let server = change(Setup::new(kind, remote.path())).start()?;
        Ok(Some(Self { server, local, remote }))
    }

    pub(crate) fn url(&self, path: &str) -> Location {
        place(&self.server.url(path))
    }

    pub(crate) fn here(&self, path: &str) -> Location {
        Location::Local(format!("{}/{path}", self.local.path().display()).into())
    }
}

/// The tag of part files without a journal, for a run that is alone in its state directory.
const SECRET: [u8; 8] = *b"a secret";

impl Bench {
    /// Options of runs whose small files have part files with known names.
    pub(crate) fn known(&self) -> Result<Options> {
        let state = self.local.directory("known")?;
        std::fs::write(state.join("run-0.lock"), SECRET)?;
        Ok(options().with(|o| o.state_directory = Some(state)))
    }

    /// The name of such a part file. Other servers than Ropewalk's do not keep two uploads to one
    /// name apart.
    pub(crate) fn part(&self, name: &str) -> String {
        if self.server.kind() == Kind::Ropewalk {
            return format!(".{name}.ropewalk-part");
        }
        let mut hasher = Hasher::new(Algorithm::Sha256);
        hasher.update(&SECRET);
        hasher.update(rustix::system::uname().nodename().to_bytes());
        format!(".{name}~{}.ropewalk-part", &hasher.finish()[..16])
    }
}

/// The part file of a file, with any tag.
pub(crate) fn part_in(directory: &Path, name: &str) -> Result<PathBuf> {
    let mut names = std::fs::read_dir(directory)?.flatten().map(|entry| entry.path());
    let is_part = |path: &PathBuf| {
        let text = path.file_name().unwrap_or_default().to_string_lossy();
        let tag = text.strip_prefix(&format!(".{name}")).and_then(|t| t.strip_suffix(".ropewalk-part"));
        tag.is_some_and(|tag| tag.is_empty() || tag.starts_with('~'))
    };
    names.find(is_part).with_context(|| format!("{name} has no part"))
}

/// GridFTP servers: GCT's, and Ropewalk's if `ROPEWALK_BIN` names the program.
pub(crate) fn gridftp() -> Vec<Kind> {
    let ours = std::env::var_os("ROPEWALK_BIN").map(|_| Kind::Ropewalk);
    [Kind::Gct].into_iter().chain(ours).collect()
}

/// The same, and plain FTP servers.
pub(crate) fn servers() -> Vec<Kind> {
    [Kind::Vsftpd].into_iter().chain(gridftp()).collect()
}

/// Runs a test against each of the servers that are installed.
pub(crate) fn each(kinds: &[Kind], test: impl Fn(Bench) -> Result<()>) -> Result<()> {
    for kind in kinds {
        if let Some(bench) = Bench::new(*kind)? {
            test(bench).with_context(|| format!("with {kind:?}"))?;
        }
    }
    Ok(())
}

pub(crate) fn place(text: &str) -> Location {
    parse_location(text).expect("a test's own location")
}

pub(crate) fn bytes(name: &[u8]) -> OsString {
    OsString::from_vec(name.to_vec())
}

pub(crate) fn options() -> Options {
    Options::default().with(|o| {
        o.recovery.retry_pause = Duration::from_millis(10);
        o.selection.recursive = true;
        o.state_directory = Some(env!("CARGO_TARGET_TMPDIR").into());
    })
}

/// The events of a copy, and its summary.
pub(crate) struct Told {
    pub(crate) events: Vec<Event>,
    pub(crate) summary: Summary,
}

impl Told {
    pub(crate) fn succeeded(self) -> Result<Self> {
        ensure!(self.summary.files_failed == 0, "failed: {:?}", self.summary.failures);
        Ok(self)
    }

    pub(crate) fn count(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        self.events.iter().filter(|event| wanted(event)).count()
    }
}

pub(crate) fn run(source: Location, destination: Location, options: &Options) -> Result<Told> {
    run_pairs(vec![Pair { source, destination, window: None }], options)
}

pub(crate) fn run_pairs(pairs: Vec<Pair>, options: &Options) -> Result<Told> {
    run_until(pairs, options, &Cancel::new(), &|_| {})
}

pub(crate) fn run_until(
    pairs: Vec<Pair>,
    options: &Options,
    cancel: &Cancel,
    look: &(dyn Fn(&Event) + Sync),
) -> Result<Told> {
    let events = Mutex::new(Vec::new());
    let tell = |event: Event| {
        look(&event);
        events.lock().push(event);
    };
    let summary = copy(pairs, options, &tell, cancel)?;
    Ok(Told { events: events.into_inner(), summary })
}

pub(crate) fn write(path: &Path, data: &[u8]) -> Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    Ok(std::fs::write(path, data)?)
}

/// Checks that no file of an unfinished transfer is left.
pub(crate) fn ensure_clean(directory: &Path) -> Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name();
        ensure!(!name.to_string_lossy().contains(".ropewalk-"), "{name:?} was left behind");
    }
    Ok(())
}

/// The number of bytes that the journals of a run record.
pub(crate) fn journaled(state: &Path) -> u64 {
    let number = |text: &str| text.parse::<u64>().unwrap_or_default();
    let journals = std::fs::read_dir(state).into_iter().flatten().flatten();
    let texts = journals.filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    let ranges = texts.map(|text| {
        let (_, present) = text.split_once("\"present\":[").unwrap_or_default();
        let pairs = present.split('[').filter_map(|pair| pair.split(']').next()?.split_once(','));
        pairs.map(|(start, end)| number(end).saturating_sub(number(start))).sum::<u64>()
    });
    ranges.sum()
}

/// Copies `s` to `t` at a server and locally; `test` checks the result.
pub(crate) fn each_way(
    kinds: &[Kind],
    test: impl Fn(&Path, Location, &Path, Location) -> Result<()>,
) -> Result<()> {
    let here = Scratch::new()?;
    let at = |name: &str| Location::Local(here.join(name));
    test(&here.join("s"), at("s"), &here.join("t"), at("t")).context("here")?;
    each(kinds, |bench| {
        test(&bench.local.join("s"), bench.here("s"), &bench.remote.join("t"), bench.url("t"))
    })
}
