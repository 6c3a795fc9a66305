//! Setup shared by all client commands: settings, credentials, signals, sessions.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ropewalk_client::{Cancel, Error, ErrorKind, EventSink, Location, Options, RelayedLogin, Remote};
use ropewalk_protocol::url::Url;

use crate::credentials::{self, Side};
use crate::exit::{Exit, usage};
use crate::output::{Human, Loudness, about, say};
use crate::settings::{Flags, Layers, Settings};
use crate::signals;
use crate::sites::Used;

/// A location, both as the user wrote it and as parsed.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// For messages: without a password.
    pub(crate) text: String,
    /// For programs: the bytes of a path are not changed.
    pub(crate) name: Vec<u8>,
    pub(crate) location: Location,
    /// The configured site that the location refers to.
    pub(crate) sites: Used,
}

/// A location that has a path.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    Local(&'a Path),
    Remote(&'a Url),
}

impl Target {
    pub(crate) fn parse(given: &OsStr) -> anyhow::Result<Self> {
        let mut sites = Used::default();
        let location = sites.parse(Side::Only, given)?;
        let name = match &location {
            Location::Remote(url) => url.to_string().into_bytes(),
            _ => given.as_bytes().to_vec(),
        };
        Ok(Self { text: String::from_utf8_lossy(&name).into_owned(), name, location, sites })
    }

    /// Returns the path or URL, or an error for standard input and the like, which only `cp`
    /// supports.
    pub(crate) fn place(&self) -> anyhow::Result<Place<'_>> {
        match &self.location {
            Location::Local(path) => Ok(Place::Local(path)),
            Location::Remote(url) => Ok(Place::Remote(url)),
            Location::Standard | Location::Measure { .. } => Err(usage("expected a path or a URL")),
        }
    }
}

/// Settings, events and cancellation of a command.
pub(crate) struct Client {
    pub(crate) options: Options,
    pub(crate) events: Arc<dyn EventSink>,
    pub(crate) cancel: Cancel,
    /// Whether the command currently works on a path of this machine. If so, the first signal ends
    /// the program.
    here: Arc<AtomicBool>,
}

impl Client {
    /// For the small commands: `ls`, `rm` and the like.
    pub(crate) fn new<'a>(
        flags: &Flags,
        targets: impl IntoIterator<Item = &'a mut Target>,
    ) -> anyhow::Result<Self> {
        let options = options_for(flags, targets)?;
        let (cancel, here) = (Cancel::new(), Arc::new(AtomicBool::new(false)));
        let act = {
            let (cancel, here) = (cancel.clone(), Arc::clone(&here));
            move || {
                cancel.cancel();
                // A call to the local system (a pipe, a disk, a large directory) cannot be
                // cancelled.
                if here.load(Ordering::SeqCst) {
                    process::exit(Exit::Interrupted as i32);
                }
            }
        };
        signals::on_first("ropewalk: interrupted", act)?;
        Ok(Self { options, events: Arc::new(Human::plain(Loudness::Normal, &cancel)), cancel, here })
    }

    /// Like [`Client::new`], for a command that watches for signals itself.
    pub(crate) fn quiet<'a>(
        flags: &Flags,
        targets: impl IntoIterator<Item = &'a mut Target>,
        cancel: &Cancel,
    ) -> anyhow::Result<Self> {
        Ok(Self::with(options_for(flags, targets)?, cancel))
    }

    /// For a command that watches for signals itself.
    pub(crate) fn with(options: Options, cancel: &Cancel) -> Self {
        let events = Arc::new(Human::plain(Loudness::Quiet, cancel));
        Self { options, events, cancel: cancel.clone(), here: Arc::default() }
    }

    /// The same client, with these log-ins at servers behind relays.
    pub(crate) fn with_hops(&self, hops: Vec<RelayedLogin>) -> Self {
        let Self { options, events, cancel, here } = self;
        let options = options.clone().with(|options| options.login.hops = hops);
        Self { options, events: events.clone(), cancel: cancel.clone(), here: here.clone() }
    }

    /// Runs `act` for each target, reports failures, and continues with the next target.
    pub(crate) fn each<'a>(
        &self,
        targets: impl IntoIterator<Item = &'a Target>,
        mut run: impl FnMut(&'a Target) -> anyhow::Result<()>,
    ) -> anyhow::Result<Exit> {
        let mut failures = Vec::new();
        let mut failed = false;
        for target in targets {
            self.here.store(matches!(target.location, Location::Local(_)), Ordering::SeqCst);
            if self.cancel.is_cancelled() {
                return Ok(Exit::Interrupted);
            }
            if let Err(error) = run(target) {
                // A failure to write standard output is not the target's fault.
                let output = |cause: &(dyn std::error::Error + 'static)| {
                    cause.downcast_ref().is_some_and(|error: &Error| error.kind() == ErrorKind::Output)
                };
                if signals::is_broken_pipe(&error) || error.chain().any(output) {
                    return Err(error);
                }
                say(format_args!("ropewalk: {}", about(&target.text, &crate::message(&error))));
                failures.push(Exit::of_error(&error));
                failed = true;
            }
        }
        Ok(match failed {
            _ if self.cancel.is_cancelled() => Exit::Interrupted,
            true => Exit::of_kinds(failures),
            false => Exit::Done,
        })
    }
}

/// Parses all targets; the first invalid one is an error.
pub(crate) fn parse_targets(given: &[OsString]) -> anyhow::Result<Vec<Target>> {
    given.iter().map(|given| Target::parse(given)).collect()
}

/// The options for these targets, whose URLs get their passwords.
fn options_for<'a>(
    flags: &Flags,
    targets: impl IntoIterator<Item = &'a mut Target>,
) -> anyhow::Result<Options> {
    let targets: Vec<&mut Target> = targets.into_iter().collect();
    let sites = Used {
        scitag: None,
        sites: targets.iter().flat_map(|target| target.sites.sites.iter().cloned()).collect(),
        hops: targets.iter().flat_map(|target| target.sites.hops.iter().cloned()).collect(),
    };
    let Settings { mut options, password_files, .. } = Layers::load_at(flags, &sites)?.settings()?;
    let locations = targets.into_iter().map(|target| (Side::Only, &mut target.location));
    credentials::complete(&mut options, &password_files, true, locations, sites.hops)?;
    Ok(options)
}

/// Sessions with servers, one for each server and user.
pub(crate) struct Sessions<'e> {
    client: &'e Client,
    open: Vec<(Url, Remote)>,
}

impl<'e> Sessions<'e> {
    pub(crate) fn new(client: &'e Client) -> Self {
        Self { client, open: Vec::new() }
    }

    /// Runs an operation on the path of `url` at its server, on an open session or a new one.
    pub(crate) fn with<T>(
        &mut self,
        url: &Url,
        run: impl FnOnce(&mut Remote, &[u8]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut remote = match self.open.iter().position(|(open, _)| credentials::same_server(open, url)) {
            Some(index) => self.open.swap_remove(index).1,
            None => {
                let Client { options, events, cancel, .. } = self.client;
                Remote::connect_with(url, options, events, cancel)?
            }
        };
        let path = remote.path_of(url);
        let result = run(&mut remote, &path);
        // After any other error the state of the connection is unknown.
        use ErrorKind::{Refused, Unsupported, Usage};
        let kind = result.as_ref().err().map(Error::kind);
        if kind.is_none_or(|kind| matches!(kind, Refused | Unsupported | Usage)) {
            self.open.push((url.clone(), remote));
        }
        result
    }

    /// Closes the sessions.
    pub(crate) fn quit(self) {
        for (_, remote) in self.open {
            remote.quit();
        }
    }
}
