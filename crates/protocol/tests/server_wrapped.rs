//! Security mechanisms whose context also protects data connections (RFC 2228 section 3; Kerberos).
#![allow(clippy::unwrap_used)]

mod common;

use common::Host;
use ropewalk_protocol::command::{DataAuthentication, Protection};
use ropewalk_protocol::server::{Operation, Outcome, SessionConfig};

#[test]
fn prot_with_wrapping_context_works_without_dcau() {
    let mut host = Host::new(SessionConfig { gssapi: true, ..SessionConfig::default() });
    host.run("AUTH GSSAPI");
    host.ask("ADAT YA==");
    host.session.completed(Ok(Outcome::Wrapped(Some("YmFy".into()))));
    assert_eq!(host.poll(), "235 ADAT=YmFy\nPROTECT");
    host.check(&[
        ("USER :globus-mapping:", "331 Password required for :globus-mapping:."),
        ("PASS ", "230 User alice logged in."),
        ("DCAU N", "200 DCAU N."),
        ("PROT P", "503 Send PBSZ before PROT."),
        ("PROT C", "200 Protection level set to C."),
        ("PBSZ 100", "501 PBSZ 100: 512 bytes are the least."),
        ("PBSZ 4294967295", "200 PBSZ=1048576"),
        ("PBSZ 65536", "200 PBSZ=65536"),
        ("PROT P", "200 Protection level set to P."),
    ]);
    for mode in ["DCAU A", "DCAU S /O=Grid/CN=x"] {
        assert!(host.run(mode).starts_with("504 With Kerberos there is DCAU N alone"), "{mode}");
    }
    let Operation::Listen(listen) = host.ask("PASV") else { panic!("no listener") };
    assert_eq!(listen.channel.protection, Protection::Private);
    assert_eq!(listen.channel.protection_buffer, 65536);
    assert_eq!(listen.channel.authentication, DataAuthentication::None);
    host.session.completed(Ok(Outcome::Addresses(vec!["127.0.0.1:46041".parse().unwrap()])));
    host.poll();
    host.run("PBSZ 4096");
    let refused = host.run("RETR f");
    assert!(refused.starts_with("425 Can't open data connection: PBSZ has closed"), "{refused}");
}
