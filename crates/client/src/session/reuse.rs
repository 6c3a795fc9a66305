//! The handover of a session from one job of a client to another.
//!
//! A [`SessionKey`] has everything that shapes a session from its first byte to its last log-in
//! command: two jobs share sessions only if their keys are equal. Keys hold secrets, so they are
//! compared, and neither hashed nor printed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_gsi::Timestamp;
use ropewalk_protocol::command::{Command, Password};
use ropewalk_protocol::site::SiteCommand;
use ropewalk_protocol::stack::StackSpec;
use ropewalk_protocol::url::{Scheme, Url};
use ropewalk_scitags::SciTag;

use super::Session;
use super::data_trust::DataTrust;
use crate::credential::FileVersion;
use crate::place::Endpoint;
use crate::setup::Setup;
use crate::{
    Confirm, DataSecurityOptions, EndOptions, LoginOptions, PasswordPrompt, RemoteError, SshOptions,
    TokenSource, TrustOptions,
};

/// After this time a session is not passed on: a new log-in uses renewed authorities and rights.
const OLDEST: Duration = Duration::from_secs(3600);
/// A certificate is not passed on if it expires within this many seconds.
const LAST_SECONDS: u64 = 600;

/// The properties of a session that no later command changes.
#[derive(PartialEq)]
pub(crate) struct SessionKey {
    /// The server and the log-in, without a path.
    url: Url,
    /// With the options of its end in place of those of both ends.
    login: LoginOptions,
    trust: TrustOptions,
    data_security: DataSecurityOptions,
    ssh: SshOptions,
    stack: Option<StackSpec>,
    disk_stack: Option<StackSpec>,
    space_token: Option<String>,
    slots_token: Option<String>,
    stripe_block: Option<u64>,
    ascii: bool,
    scitag: Option<SciTag>,
    /// Whether there is one: it can be changed, but not taken back.
    has_task: bool,
    in_place: bool,
    tcp_buffer: Option<u64>,
    trace_control: bool,
    /// The place of the known servers.
    state_directory: Option<PathBuf>,
    confirm: Option<Confirm>,
    prompt: Option<PasswordPrompt>,
    /// The token itself: a renewed one belongs to other sessions.
    token: Option<Password>,
    /// The files of the credential, which may be replaced between two jobs.
    credential: Vec<FileVersion>,
}

/// The way in which later jobs may use a session.
pub(crate) struct Reuse {
    key: SessionKey,
    opened: Instant,
}

impl SessionKey {
    /// The key of a session that is opened with these options now; `None`: it has none, because
    /// the log-in needs a token that cannot be read, or a delegated credential, which is for one
    /// client only.
    pub(crate) fn new(endpoint: &Endpoint, setup: &Setup) -> Option<Self> {
        if setup.ours.is_delegated() {
            return None;
        }
        let options = &setup.options;
        let EndOptions { credential, server_subject, stack, disk_stack, space_token, slots_token } =
            options.end(endpoint.end);
        let token = match options.login.token {
            TokenSource::None => None,
            _ if (endpoint.url.user.is_some() || endpoint.url.scheme == Scheme::Sshftp)
                && options.login.hops.is_empty() =>
            {
                None
            }
            ref source => Some(Password::new(source.token().ok().flatten()?.expose())),
        };
        let files = setup.ours.files(credential.as_deref());
        Some(Self {
            url: endpoint.url.clone(),
            login: LoginOptions {
                credential,
                source: EndOptions::default(),
                destination: EndOptions::default(),
                ..options.login.clone()
            },
            trust: TrustOptions { server_subject, ..options.trust.clone() },
            data_security: options.data_security.clone(),
            ssh: options.ssh.clone(),
            stack,
            disk_stack,
            space_token,
            slots_token,
            stripe_block: options.data.stripe_block,
            ascii: options.data.ascii,
            scitag: options.data.scitag,
            has_task: options.data.task.is_some(),
            in_place: options.storage.in_place,
            tcp_buffer: options.tuning.tcp_buffer,
            trace_control: options.trace_control,
            state_directory: options.state_directory.clone(),
            confirm: options.prompts.confirm.clone(),
            prompt: options.prompts.password.clone(),
            token,
            credential: files,
        })
    }

    /// Whether sessions are with the same server, no matter who logs in.
    pub(crate) fn is_server(&self, url: &Url) -> bool {
        (self.url.scheme, &self.url.host, self.url.port) == (url.scheme, &url.host, url.port)
    }

    /// Whether two sessions are with the same server.
    pub(crate) fn shares_server(&self, other: &Self) -> bool {
        self.is_server(&other.url)
    }
}

impl Session {
    /// Lets later jobs of the client use this session. `key` was made before it was opened. A
    /// ticket of Kerberos comes from a cache that may belong to another principal at any time, so
    /// that sessions which logged in with one are not shared.
    pub(crate) fn allow_reuse(&mut self, key: SessionKey) {
        // A token or a credential may have been replaced meanwhile.
        let same = SessionKey::new(&self.endpoint, &self.setup).is_some_and(|now| now == key);
        self.reuse = (same && self.kerberos.is_none()).then(|| Reuse { key, opened: Instant::now() });
    }

    /// The key under which another job may use this session now; `None`: none may.
    pub(crate) fn reusable_as(&self) -> Option<&SessionKey> {
        let reuse = self.reuse.as_ref()?;
        let fresh = reuse.opened.elapsed() < OLDEST && self.certificate_lasts();
        let usable = fresh
            && self.control.is_at_rest()
            && !self.setup.cancel.is_cancelled()
            && matches!(self.data_trust, DataTrust::Login)
            // The server's stack is that of this job's tuner.
            && self.driver.is_none()
            // The server would keep them for this session.
            && self.uploads.is_empty();
        usable.then_some(&reuse.key)
    }

    /// Names the task of this job to the server, unless it has the name. Servers that do not know
    /// the command may refuse it.
    pub(crate) fn tell_task(&mut self) -> Result<(), RemoteError> {
        let task = &self.setup.options.data.task;
        if let Some(name) = task.as_ref().filter(|_| self.can.extended && self.task != *task) {
            self.control.suggest(&Command::Site(SiteCommand::TaskId(name.as_str().into())))?;
            self.task.clone_from(task);
        }
        Ok(())
    }

    fn certificate_lasts(&self) -> bool {
        let Some(own) = self.own() else { return true };
        let end = own.identity.credential().not_after();
        end.left_at(Timestamp::now()) > LAST_SECONDS
    }

    /// Ends everything that belongs to the present job: `setup` is that of no job. Its data
    /// connections close, because their limits are those of the job.
    pub(crate) fn set_aside(&mut self, setup: &Arc<Setup>) {
        self.channel = None;
        self.path_tuner = None;
        self.serving = None;
        self.wants_path = false;
        self.setup = setup.clone();
        self.control.hand_over(&setup.options, &setup.events, &setup.cancel);
    }

    /// Makes this a session of another job, if the server still answers.
    ///
    /// # Errors
    /// It is cancelled. Other errors only mean that a new session is needed.
    pub(crate) fn pass_to(
        mut self,
        endpoint: &Arc<Endpoint>,
        setup: &Arc<Setup>,
    ) -> Result<Option<Self>, RemoteError> {
        let before = std::mem::replace(&mut self.endpoint, endpoint.clone());
        self.setup = setup.clone();
        self.control.hand_over(&setup.options, &setup.events, &setup.cancel);
        self.tell_task()?;
        if !self.control.answers()? {
            return Ok(None);
        }
        endpoint.was_reached(self.control.remote_addr().ip());
        if let Some(features) = before.features() {
            endpoint.learned(features);
        }
        endpoint.saw_rtt(self.control.rtt());
        self.report_stack();
        Ok(Some(self))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;
    use crate::model::event::no_events;
    use crate::{Cancel, Fairness, Options, RelayedLogin};

    fn key(url: &str, options: &Options) -> SessionKey {
        let setup = Setup::new(options, &no_events(), &Cancel::new());
        SessionKey::new(&Endpoint::new(&Url::parse(url).unwrap()), &setup).unwrap()
    }

    #[test]
    fn key_of_options_that_no_log_in_command_depends_on_is_the_same() {
        let usual = key("ftp://u:p@h/a", &Options::default());
        let other = Options::default().with(|o| {
            o.tuning.max_streams = 3;
            o.tuning.fairness = Fairness::Polite;
            o.recovery.retries = 9;
            o.selection.recursive = true;
            o.timeouts.reply = Duration::from_secs(1);
        });
        assert!(usual == key("ftp://u:p@h/b", &other));
    }

    fn hop(server: &str) -> RelayedLogin {
        RelayedLogin { relay: "relay:1".parse().unwrap(), server: Url::parse(server).unwrap() }
    }

    #[test]
    fn key_of_another_server_user_or_option_of_the_session_differs() {
        let usual = key("ftp://u:p@h/", &Options::default());
        for url in
            ["ftp://u:q@h/", "ftp://v:p@h/", "ftp://h/", "ftp://u:p@i/", "ftp://u:p@h:99/", "ftpes://u:p@h/"]
        {
            assert!(usual != key(url, &Options::default()), "{url}");
        }
        let changes: [fn(&mut Options); 17] = [
            |o| o.login.hops = vec![hop("ftpes://ada:x@h/")],
            |o| o.login.user = Some("v".into()),
            |o| o.login.password = Some(Password::new("q")),
            |o| o.login.tls = true,
            |o| o.login.credential = Some("/none".into()),
            |o| o.login.delegate = false,
            |o| o.trust.server_subject = Some("/CN=a".into()),
            |o| o.trust.authorities = Some("/none".into()),
            |o| o.data_security.authentication = false,
            |o| o.ssh.remote_command = Some("true".into()),
            |o| o.data.ascii = true,
            |o| o.data.scitag = "147".parse().ok(),
            |o| o.data.task = Some("job-7".into()),
            |o| o.data.stack = "udt".parse().ok(),
            |o| o.storage.in_place = true,
            |o| o.tuning.tcp_buffer = Some(1),
            |o| o.prompts.confirm = Some(Confirm::new(|_| true)),
        ];
        for (n, change) in changes.into_iter().enumerate() {
            assert!(usual != key("ftp://u:p@h/", &Options::default().with(change)), "change {n}");
        }
    }

    #[test]
    fn key_of_another_token_or_of_a_replaced_credential_differs() {
        let here = tempfile::tempdir().unwrap();
        let (token, proxy) = (here.path().join("token"), here.path().join("proxy"));
        let write = |path: &std::path::Path, text: &str| {
            ropewalk_files::replace(path, text.as_bytes(), 0o600, ropewalk_files::OnDisk::Later).unwrap();
        };
        write(&token, "one");
        write(&proxy, "one");
        let options = Options::default().with(|o| {
            o.login.token = TokenSource::File(token.clone());
            o.login.credential = Some(proxy.clone());
        });
        let made = || key("gsiftp://h/", &options);
        let first = made();
        assert!(first == made());
        write(&token, "two");
        let second = made();
        assert!(first != second);
        write(&proxy, "one");
        assert!(second != made());
        fs::remove_file(&token).unwrap();
        let setup = Setup::new(&options, &no_events(), &Cancel::new());
        let endpoint = Endpoint::new(&Url::parse("gsiftp://h/").unwrap());
        assert!(SessionKey::new(&endpoint, &setup).is_none());
    }
}
