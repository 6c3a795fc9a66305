//! Realms for tests. The library reads its settings from the environment, so each test runs a
//! second time in a separate process whose environment has these settings.
#![allow(clippy::unwrap_used, dead_code)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_kerberos::{
    Acceptor, AcceptorOptions, Credential, Initiator, InitiatorOptions, KerberosError, Session, Step,
};
use ropewalk_tests::realm::{self, Realm};

pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Sets up a realm and runs `rest` in it. `name` is the name of the calling test.
pub(crate) fn in_realm(name: &str, set_up: impl FnOnce(&Realm), rest: impl FnOnce(&Path)) {
    in_this_realm(name, || Realm::new().unwrap(), set_up, rest);
}

pub(crate) fn in_this_realm(
    name: &str,
    make: impl FnOnce() -> Realm,
    set_up: impl FnOnce(&Realm),
    rest: impl FnOnce(&Path),
) {
    if let Some(directory) = realm::inside() {
        return rest(&directory);
    }
    if !realm::available() {
        return;
    }
    let realm = make();
    set_up(&realm);
    if let Err(error) = realm::enter(&realm, name) {
        panic!("{error}");
    }
}

pub(crate) fn client(cache: Option<&str>) -> Arc<Credential> {
    Arc::new(Credential::client(cache).unwrap())
}

pub(crate) fn server(options: AcceptorOptions) -> Acceptor {
    Acceptor::new(Arc::new(Credential::server(None, None).unwrap()), options).unwrap()
}

/// The first token of a client.
pub(crate) fn first_token() -> Vec<u8> {
    let mut initiator = Initiator::new(client(None), InitiatorOptions::new("localhost"));
    match initiator.step(&[]).unwrap() {
        Step::Continue(token) => token,
        Step::Done(..) => panic!("done without the server"),
    }
}

#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) client: Box<Session>,
    pub(crate) server: Box<Session>,
    pub(crate) tokens: usize,
}

pub(crate) fn established(options: InitiatorOptions) -> Pair {
    connect(options, AcceptorOptions::default()).unwrap()
}

pub(crate) fn connect(options: InitiatorOptions, accepts: AcceptorOptions) -> Result<Pair, KerberosError> {
    let mut initiator = Initiator::new(client(None), options);
    let mut acceptor = server(accepts);
    let (mut ours, mut theirs) = (None, None);
    let mut token = Vec::new();
    for round in 0.. {
        let step = if round % 2 == 0 { initiator.step(&token)? } else { acceptor.step(&token)? };
        let side = if round % 2 == 0 { &mut ours } else { &mut theirs };
        token = match step {
            Step::Continue(out) => out,
            Step::Done(out, session) => {
                *side = Some(session);
                out
            }
        };
        (ours, theirs) = match (ours, theirs) {
            (Some(client), Some(server)) => return Ok(Pair { client, server, tokens: round }),
            other => other,
        };
        assert!(round < 10);
    }
    unreachable!()
}
