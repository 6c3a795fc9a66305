//! Stacks from stack strings: which ones there are, what they are made of, and what a policy
//! refuses.
#![allow(clippy::unwrap_used)]

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use ropewalk_layers::{
    Assurance, Handshake, KeyLayer, Layer, Policy, Refusal, Registry, SessionSecurity, Stack, StackBuilder,
    fresh_key,
};
use ropewalk_protocol::command::{DataAuthentication, Protection};
use ropewalk_protocol::stack::{DriverOption, StackSpec};
use ropewalk_transport::testing::{Memory, pair};
use ropewalk_transport::{Connection, Options, Tuning};

const NO_GSI: DataAuthentication = DataAuthentication::None;
const WITH_SELF: DataAuthentication = DataAuthentication::SelfAuthentication;

fn spec(text: &str) -> StackSpec {
    text.parse().unwrap()
}

/// A layer that no connection uses.
struct Fake(Assurance);

impl Layer for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn assurance(&self) -> Assurance {
        self.0
    }

    fn begin(&self, _: Box<dyn Connection>, _: bool) -> io::Result<Box<dyn Handshake>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

fn make_fake(options: &[DriverOption]) -> Result<Arc<dyn Layer>, String> {
    match options.first() {
        Some(option) => Err(option.key()),
        None => Ok(Arc::new(Fake(Assurance::default()))),
    }
}

fn registry() -> Registry {
    Registry::standard().with_driver(Arc::new(Memory::default())).with_layer("fake", make_fake)
}

/// The error text for a stack, as a server with these drivers has it.
fn check(
    stack: &str,
    allowed: &[&str],
    authentication: &DataAuthentication,
    protection: Protection,
) -> String {
    let (registry, allowed) = (registry(), allowed.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    let builder = StackBuilder::new(&registry).allowing(&allowed).with_gsi(authentication, protection);
    builder.check(&spec(stack)).err().map(|error| error.to_string()).unwrap_or_default()
}

const USUAL: [&str; 2] = ["tcp", "gsi"];

#[test]
fn stack_of_a_session_without_gsi_is_checked() {
    for (stack, refusal) in [
        ("tcp", ""),
        ("tcp:sndbuf=65536;rcvbuf=131072;nodelay=1", ""),
        ("TCP:KeepAlive;;", ""),
        ("tcp:port=21", "tcp option port is not supported"),
        ("tcp:sndbuf=x", "tcp option sndbuf is not supported"),
        ("tcp,gsi", "gsi driver needs AUTH GSSAPI and DCAU A or S"),
        ("tcp,tcp", "tcp driver is there twice"),
        ("udt,gsi", "udt driver not whitelisted"),
        ("memory", "memory driver not whitelisted"),
    ] {
        assert_eq!(check(stack, &USUAL, &NO_GSI, Protection::Clear), refusal, "{stack}");
    }
}

#[test]
fn gsi_in_a_stack_has_to_describe_the_session() {
    for stack in
        ["tcp,gsi", "gsi,tcp", "gsi", "tcp", "TCP:sndbuf=65536,GSI:auth=self", "tcp,gsi:protection=none"]
    {
        assert_eq!(check(stack, &USUAL, &WITH_SELF, Protection::Clear), "", "{stack}");
    }
    for (stack, protection, refusal) in [
        ("udt,gsi", Protection::Clear, "udt driver not whitelisted"),
        ("tcp,gsi:subject=x", Protection::Clear, "gsi option subject=x is not supported"),
        ("tcp,gsi:protection=private", Protection::Clear, "gsi option protection=private is not supported"),
        ("tcp,gsi:protection=private", Protection::Private, ""),
        ("tcp,gsi:protection=integrity", Protection::Safe, ""),
        ("gsi,gsi", Protection::Private, "gsi driver is there twice"),
    ] {
        assert_eq!(check(stack, &USUAL, &WITH_SELF, protection), refusal, "{stack}");
    }
    let subject = DataAuthentication::Subject("/CN=x".into());
    assert_eq!(
        check("tcp,gsi:auth=self", &USUAL, &subject, Protection::Clear),
        "gsi option auth=self is not supported"
    );
}

#[test]
fn stack_has_one_transport() {
    let all = ["tcp", "gsi", "memory", "fake"];
    let check = |stack| check(stack, &all, &NO_GSI, Protection::Clear);
    assert_eq!(check("udt"), "udt driver not whitelisted");
    assert_eq!(check("memory,fake"), "");
    assert_eq!(check("tcp,memory"), "memory driver cannot be used together with another transport");
    assert_eq!(check("memory,fake:x=1"), "fake option x is not supported");
}

fn build(stack: Option<&str>, security: SessionSecurity, policy: Policy) -> Result<Stack, Refusal> {
    let registry = registry();
    StackBuilder::new(&registry).build(stack.map(spec).as_ref(), security, policy)
}

/// A layer of the session with this assurance: bound, protected.
fn session(bound: bool, protected: bool) -> SessionSecurity {
    let layer = Arc::new(Fake(Assurance { bound, protected })) as Arc<dyn Layer>;
    SessionSecurity { layer: Some(layer), ..SessionSecurity::default() }
}

fn with_key(security: SessionSecurity) -> SessionSecurity {
    let mut secret = [0; 32];
    let number = fresh_key(&mut secret).unwrap();
    SessionSecurity { key: Some(Arc::new(KeyLayer::new(number, &secret).unwrap())), ..security }
}

#[test]
fn policy_is_checked_on_the_finished_stack() {
    let (protected, bound) =
        (Policy { protected: true, bound: false }, Policy { protected: false, bound: true });
    let refusal = |security, policy| build(Some("tcp,fake"), security, policy).err();
    // Without security, GSI with PROT C, TLS.
    assert_eq!(refusal(SessionSecurity::default(), Policy::default()), None);
    assert_eq!(refusal(SessionSecurity::default(), protected), Some(Refusal::NotProtected));
    assert_eq!(refusal(SessionSecurity::default(), bound), Some(Refusal::NotBound));
    assert_eq!(refusal(session(true, false), protected), Some(Refusal::NotProtected));
    assert_eq!(refusal(session(true, false), bound), None);
    assert_eq!(refusal(session(true, true), protected), None);
    // PROT S of Kerberos: the first that connects can read the data, unless there is a key.
    assert_eq!(refusal(session(false, true), protected), Some(Refusal::NotProtected));
    assert_eq!(refusal(session(false, true), bound), Some(Refusal::NotBound));
    assert_eq!(refusal(with_key(session(false, true)), protected), None);
    assert_eq!(refusal(with_key(SessionSecurity::default()), bound), None);
    assert_eq!(refusal(with_key(SessionSecurity::default()), protected), Some(Refusal::NotProtected));
}

#[cfg(feature = "quic")]
#[test]
fn driver_that_encrypts_protects_data_with_a_key_only() {
    let policy = Policy { protected: true, bound: false };
    let refusal = |security| build(Some("quic"), security, policy).err();
    assert_eq!(refusal(SessionSecurity::default()), Some(Refusal::NoKey("quic")));
    // GSI with PROT C does not know the connection of the driver.
    assert_eq!(refusal(session(true, false)), Some(Refusal::NoKey("quic")));
    assert_eq!(refusal(with_key(SessionSecurity::default())), None);
    assert_eq!(refusal(session(true, true)), None);
    assert_eq!(registry().encrypting().collect::<Vec<_>>(), ["quic"]);
}

#[test]
fn security_of_the_session_is_over_the_driver_of_the_string() {
    let stack = build(Some("memory"), with_key(SessionSecurity::default()), Policy::default()).unwrap();
    assert_eq!(stack.driver.name(), "key");
    let (near, far) = pair(&*stack.driver, (Ipv4Addr::LOCALHOST, 0));
    assert!(near.fast_path().socket().is_none() && far.fast_path().socket().is_none());
}

#[test]
fn stack_without_a_string_is_the_default_driver() {
    let stack = build(None, SessionSecurity::default(), Policy::default()).unwrap();
    assert_eq!(stack.driver.name(), "tcp");
    let stack = build(Some("fake"), SessionSecurity::default(), Policy::default()).unwrap();
    assert_eq!(stack.driver.name(), "fake");
}

#[test]
fn options_of_the_string_override_those_of_the_channel() {
    let of_channel = || Tuning { send_buffer: Some(1), receive_buffer: Some(2), ..Tuning::default() };
    let applied = |text| {
        let stack = build(Some(text), SessionSecurity::default(), Policy::default()).unwrap();
        let mut options = Options { tuning: of_channel(), ..Options::default() };
        stack.apply(&mut options);
        options.tuning
    };
    assert_eq!(applied("tcp:nodelay"), of_channel());
    assert_eq!(applied("udt:sndbuf=8388608"), Tuning { send_buffer: Some(8_388_608), ..of_channel() });
    #[cfg(feature = "quic")]
    assert_eq!(
        applied("quic:congestion=cubic"),
        Tuning { congestion: Some("cubic".to_owned()), ..of_channel() }
    );
    assert_eq!(applied("tcp:rcvbuf=65536"), Tuning { receive_buffer: Some(65536), ..of_channel() });
}
