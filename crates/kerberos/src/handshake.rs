//! The exchange of GSS tokens that establishes a session (RFC 4121 section 4.1). The initiator
//! sends a ticket; the acceptor proves that it has the key of the service. Both sides require
//! mutual authentication. [`Initiator`] and [`Acceptor`] only turn received tokens into tokens to
//! send; the caller moves them over the control connection. After an error neither can be used
//! again.

use std::sync::Arc;

use crate::KerberosError;
use crate::framing;
use crate::session::Session;
use crate::sys::{Context, Credential, Flags, Name, NameKind};

/// Maximum length of a token, in bytes. Tickets that list the groups of a user in a large Active
/// Directory come close to it.
pub const MAX_TOKEN: usize = 64 << 10;

/// Result of a step.
#[derive(Debug)]
pub enum Step {
    /// Send this token, and wait for the peer's next one.
    Continue(Vec<u8>),
    /// Send this token if it is not empty; the session is established.
    Done(Vec<u8>, Box<Session>),
}

/// Options of the client's side.
#[derive(Clone, Debug)]
pub struct InitiatorOptions {
    /// The server's name, as in its principal. The library makes it canonical if krb5.conf says so.
    pub host: String,
    /// Services at that host, tried in order until the key distribution centre knows one. RFC 2228
    /// section 8.1 puts `ftp` before `host`. `host` comes first here, because every host of a realm
    /// has it and GCT's programs ask for it.
    pub services: Vec<String>,
    /// The server's whole principal (`host/data.example@EXAMPLE`); overrides `host` and `services`.
    pub principal: Option<String>,
    /// Whether to forward the ticket-granting ticket, if it is forwardable.
    pub delegate: bool,
}

impl InitiatorOptions {
    pub fn new(host: impl Into<String>) -> Self {
        Self {
            host: host.into(),
            services: vec!["host".into(), "ftp".into()],
            principal: None,
            delegate: false,
        }
    }
}

/// Options of the server's side.
#[derive(Clone, Debug)]
pub struct AcceptorOptions {
    /// Services for which tickets are accepted. A ticket for another service whose key is in the
    /// same keytab is refused. An empty list accepts any service.
    pub services: Vec<String>,
}

impl Default for AcceptorOptions {
    fn default() -> Self {
        Self { services: vec!["host".into(), "ftp".into()] }
    }
}

/// The initiator's side of the token exchange.
pub struct Initiator {
    credential: Arc<Credential>,
    options: InitiatorOptions,
    /// The context and the name of the server it is for, after the first token was made. `None`
    /// again after the last token or an error.
    open: Option<(Context, Name)>,
    begun: bool,
}

impl std::fmt::Debug for Initiator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Initiator").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Initiator {
    pub fn new(credential: Arc<Credential>, options: InitiatorOptions) -> Self {
        Self { credential, options, open: None, begun: false }
    }

    fn flags(&self) -> Flags {
        let flags = Flags::MUTUAL.with(Flags::REPLAY).with(Flags::CONFIDENTIAL).with(Flags::INTEGRITY);
        if self.options.delegate { flags.with(Flags::DELEGATE) } else { flags }
    }

    fn targets(&self) -> Result<Vec<Name>, KerberosError> {
        if let Some(principal) = &self.options.principal {
            return Ok(vec![Name::import(principal, NameKind::Principal)?]);
        }
        let part = |text: &str| {
            let bad = text.is_empty()
                || text.contains(|c: char| c == '@' || c == '/' || c == '\\' || c.is_control());
            if bad { Err(KerberosError::Name { text: text.to_owned() }) } else { Ok(()) }
        };
        part(&self.options.host)?;
        let names = self.options.services.iter().map(|service| {
            part(service)?;
            Name::import(&format!("{service}@{}", self.options.host), NameKind::HostBased)
        });
        names.collect()
    }

    /// Takes the peer's token (empty in the first step) and returns the token to send. The first
    /// step may request a ticket from the key distribution centre, which takes time.
    ///
    /// # Errors
    /// There is no valid ticket, or the server is not the expected peer.
    pub fn step(&mut self, token: &[u8]) -> Result<Step, KerberosError> {
        if token.len() > MAX_TOKEN {
            return Err(KerberosError::TooLong { found: token.len(), most: MAX_TOKEN });
        }
        if !self.begun {
            self.begun = true;
            return self.begin();
        }
        let (mut context, name) = self.open.take().ok_or(KerberosError::Over)?;
        let stepped = context.initiate(&self.credential, &name, self.flags(), &mut token.to_vec())?;
        if !stepped.done {
            self.open = Some((context, name));
            return Ok(Step::Continue(stepped.out));
        }
        let facts = context.facts()?;
        check_flags(facts.flags)?;
        if let Some(wanted) = &self.options.principal
            && *wanted != facts.acceptor
        {
            return Err(KerberosError::WrongServer { found: facts.acceptor, wanted: wanted.clone() });
        }
        let server = facts.acceptor.clone();
        let session = Session::new(context, facts.acceptor, server, facts.expires, None);
        Ok(Step::Done(stepped.out, Box::new(session)))
    }

    fn begin(&mut self) -> Result<Step, KerberosError> {
        let mut targets = self.targets()?.into_iter().peekable();
        while let Some(name) = targets.next() {
            let mut context = Context::new()?;
            match context.initiate(&self.credential, &name, self.flags(), &mut []) {
                Ok(stepped) if !stepped.done => {
                    self.open = Some((context, name));
                    return Ok(Step::Continue(stepped.out));
                }
                // The exchange would end without the server's proof.
                Ok(_) => return Err(KerberosError::Lacks { what: "mutual authentication" }),
                Err(error) if error.is_unknown_service() && targets.peek().is_some() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(KerberosError::NoService)
    }
}

/// The acceptor's side of the token exchange.
pub struct Acceptor {
    credential: Arc<Credential>,
    options: AcceptorOptions,
    context: Option<Context>,
    begun: bool,
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acceptor").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Acceptor {
    /// # Errors
    /// The Kerberos library cannot be loaded.
    pub fn new(credential: Arc<Credential>, options: AcceptorOptions) -> Result<Self, KerberosError> {
        Ok(Self { credential, options, context: Some(Context::new()?), begun: false })
    }

    /// Takes a whole token of the client and returns the token to send.
    ///
    /// # Errors
    /// The client cannot be authenticated.
    pub fn step(&mut self, token: &[u8]) -> Result<Step, KerberosError> {
        let mut context = self.context.take().ok_or(KerberosError::Over)?;
        if token.len() > MAX_TOKEN {
            return Err(KerberosError::TooLong { found: token.len(), most: MAX_TOKEN });
        }
        if !std::mem::replace(&mut self.begun, true) {
            framing::check_first(token)?;
        }
        let stepped = context.accept(&self.credential, &mut token.to_vec())?;
        if !stepped.done {
            self.context = Some(context);
            return Ok(Step::Continue(stepped.out));
        }
        let facts = context.facts()?;
        check_flags(facts.flags)?;
        let services = &self.options.services;
        let service = facts.acceptor.split(['/', '@']).next().unwrap_or_default();
        if !services.is_empty() && !services.iter().any(|known| known == service) {
            return Err(KerberosError::Service { found: facts.acceptor, wanted: services.join(", ") });
        }
        let session =
            Session::new(context, facts.initiator, facts.acceptor, facts.expires, stepped.delegated);
        Ok(Step::Done(stepped.out, Box::new(session)))
    }
}

fn check_flags(flags: Flags) -> Result<(), KerberosError> {
    let wanted = [
        (Flags::MUTUAL, "mutual authentication"),
        (Flags::INTEGRITY, "integrity"),
        (Flags::CONFIDENTIAL, "confidentiality"),
    ];
    match wanted.into_iter().find(|(flag, _)| !flags.has(*flag)) {
        Some((_, what)) => Err(KerberosError::Lacks { what }),
        None => Ok(()),
    }
}
