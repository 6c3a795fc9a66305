//! The state of a session that operations use: its client, its account, its data channel.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bstr::BString;
use ropewalk_engine::Parallelism;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::scitag::SciTag;
use ropewalk_protocol::server::Failure;

use crate::accounts::login::Login;
use crate::host::audit::{Decision, Line, Party};
use crate::host::parts::{CompletedParts, RELEASE_TIME};
use crate::host::profiling::Profile;
use crate::host::uploads::SessionUploads;
use crate::measurements::IperfServer;
use crate::security::client::SecurityContext;
use crate::session::data_channel::Channel;
use crate::settings::Settings;

pub(crate) struct Context {
    pub(crate) id: u64,
    /// The client's address and port on the control connection; IPv4 addresses have their IPv4 form
    /// even on an IPv6 socket.
    pub(crate) peer: SocketAddr,
    /// The address and port of this host on the control connection.
    pub(crate) local: SocketAddr,
    pub(crate) settings: Arc<Settings>,
    pub(crate) login: Option<Box<Login>>,
    pub(crate) channel: Option<Box<Channel>>,
    /// SITE PROFILE: the profile that is being measured, or that waits to be fetched.
    pub(crate) profile: Option<Profile>,
    /// SITE PROFILE BASELINE IPERF: the server that the client started last.
    pub(crate) iperf: Option<Box<dyn IperfServer>>,
    /// SITE TASKID.
    pub(crate) task: Option<BString>,
    /// SITE SCITAG: the tag that the client has named; `Some(None)` if it wants none.
    pub(crate) scitag: Option<Option<SciTag>>,
    /// The client, by the mechanism that protects the control connection.
    pub(crate) client: SecurityContext,
    pub(crate) reported: StatHistory,
    pub(crate) completed_parts: CompletedParts,
    pub(crate) uploads: SessionUploads,
    pub(crate) retry: Retry,
}

/// Retries of an operation that only fails because another session is about to release what it
/// needs. The operation is repeated for a moment, and no thread waits meanwhile.
#[derive(Default)]
pub(crate) struct Retry {
    asked: bool,
    until: Option<Instant>,
}

impl Retry {
    /// Asks for a retry: the operation fails, but may succeed soon.
    pub(crate) fn ask(&mut self) {
        self.asked = true;
    }

    /// The time at which to retry the operation that has just ended; `None` if its result is final.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Instant> {
        let until = self.until.take().unwrap_or(now + RELEASE_TIME);
        let again = mem::take(&mut self.asked) && now < until;
        self.until = again.then_some(until);
        again.then(|| now + RELEASE_TIME / 100)
    }
}

/// The files whose size or facts were reported to the client.
#[derive(Default)]
pub(crate) struct StatHistory {
    asked: VecDeque<u64>,
    /// There were listings, or too many files to remember.
    many: bool,
}

impl StatHistory {
    const MOST: usize = 64;

    pub(crate) fn note(&mut self, path: &VirtualPath) {
        if self.has(path) {
            return;
        }
        if self.asked.len() == Self::MOST {
            return self.note_many();
        }
        self.asked.push_back(Self::hash(path));
    }

    pub(crate) fn note_many(&mut self) {
        *self = Self { asked: VecDeque::new(), many: true };
    }

    /// Never false for a file that was reported.
    pub(crate) fn has(&self, path: &VirtualPath) -> bool {
        self.many || self.asked.contains(&Self::hash(path))
    }

    fn hash(path: &VirtualPath) -> u64 {
        let mut hasher = DefaultHasher::new();
        path.as_bytes().hash(&mut hasher);
        hasher.finish()
    }
}

impl Context {
    pub(crate) fn login(&self) -> Result<&Login, Failure> {
        let refused = || Failure::Refused { code: 530, text: "Please login with USER and PASS.".into() };
        self.login.as_deref().ok_or_else(refused)
    }

    /// An entry of the audit trail about this session.
    pub(crate) fn audit_line(&self, event: &'static str, decision: Decision) -> Line {
        let login = self.login.as_deref();
        let vouched = login.and_then(|login| login.vouched.as_ref());
        let party = Party {
            session: self.id,
            peer: self.peer,
            subject: self.client.subject().or(vouched.map(|(subject, _)| subject.as_str())),
            issuer: vouched.map(|(_, issuer)| issuer.as_str()),
            user: login.map(|login| login.account.name.as_str()),
            uid: login.map(Login::uid),
        };
        Line::new(party, event, decision)
    }

    /// The user's name in limits and permissions. All anonymous users have one name there.
    pub(crate) fn counted_as(&self) -> &str {
        self.login.as_ref().map_or("", |login| &login.account.counted_as)
    }

    /// The token of the reservation of slots that its transfers use.
    pub(crate) fn reservation(&self) -> Option<Arc<str>> {
        self.login.as_ref().and_then(|login| login.slots.lock().clone())
    }

    /// The number of streams of the data channel, if it can change (MODE E).
    pub(crate) fn streams(&self) -> Option<Parallelism> {
        self.channel.as_ref().and_then(|channel| channel.streams())
    }

    /// The user as whom the session works on files, if that is not the server's own user.
    pub(crate) fn acting_uid(&self) -> Option<u32> {
        self.login.as_ref().and_then(|login| login.whole.acting_uid())
    }

    /// Whether the bearer token of the log-in has expired.
    pub(crate) fn has_expired(&self) -> bool {
        self.login.as_ref().and_then(|login| login.expires).is_some_and(|at| at <= Instant::now())
    }

    /// The name for logs.
    pub(crate) fn user(&self) -> &str {
        self.login.as_ref().map_or("-", |login| &login.account.name)
    }
}
