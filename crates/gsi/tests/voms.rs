//! Attribute certificates of VOMS: claims are read, and verified against the servers that may speak
//! for a virtual organisation.
#![allow(clippy::unwrap_used)]

mod common;

use common::Site;
use openssl::hash::MessageDigest;
use openssl::sign::Signer;
use ropewalk_gsi::testing::{Forged, INHERIT_ALL, PROXY_CERT_INFO, chain};
use ropewalk_gsi::{Credential, Timestamp, VomsError, voms_claims};

const AUTHORITY: &[u8] = b"atlas://voms.example.org:15001";

fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let mut out = vec![tag];
    match content.len() {
        length @ 0..=127 => out.push(length as u8),
        length => out.extend([0x82, (length >> 8) as u8, length as u8]),
    }
    out.extend(content);
    out
}

fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    element(0x30, parts)
}

/// The extension that the VOMS server `server` adds to proxies of `holder`.
fn attributes(server: &Credential, holder: &Credential) -> Vec<u8> {
    attributes_and(server, holder, &[])
}

/// Like `attributes`, with an additional extension (DER).
fn attributes_and(server: &Credential, holder: &Credential, extension: &[u8]) -> Vec<u8> {
    let certificate = holder.certificate();
    let issuer = element(0xa4, &[&certificate.issuer_name().to_der().unwrap()]);
    let serial = element(2, &[&[0], &certificate.serial_number().to_bn().unwrap().to_vec()]);
    let holder = sequence(&[&element(0xa0, &[&sequence(&[&issuer]), &serial])]);
    let name = element(0xa4, &[&server.certificate().subject_name().to_der().unwrap()]);
    let issuer = element(0xa0, &[&sequence(&[&name])]);
    let sha256_rsa =
        sequence(&[&element(6, &[&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11]]), &element(5, &[])]);
    let times = [b"20200101000000Z", b"20991231000000Z"].map(|time| element(0x18, &[time]));
    let fqans = [&b"/atlas"[..], b"/atlas/Role=production"].map(|fqan| element(4, &[fqan])).concat();
    let syntax = sequence(&[&element(0xa0, &[&element(0x86, &[AUTHORITY])]), &sequence(&[&fqans])]);
    let oid = |last| element(6, &[&[0x2b, 6, 1, 4, 1, 0xbe, 0x45, 0x64, 0x64, last]]);
    let attribute = sequence(&[&oid(4), &element(0x31, &[&syntax])]);
    let signer = server.certificate().to_der().unwrap();
    let signers = sequence(&[&oid(10), &element(4, &[&sequence(&[&sequence(&[&signer])])])]);
    let info = sequence(&[
        &element(2, &[&[1]]),
        &holder,
        &issuer,
        &sha256_rsa,
        &element(2, &[&[9]]),
        &sequence(&[&times[0], &times[1]]),
        &sequence(&[&attribute]),
        &sequence(&[&signers, extension]),
    ]);
    let mut sign = Signer::new(MessageDigest::sha256(), server.key()).unwrap();
    let signature = sign.sign_oneshot_to_vec(&info).unwrap();
    let whole = sequence(&[&info, &sha256_rsa, &element(3, &[&[0], &signature])]);
    sequence(&[&sequence(&[&whole])])
}

fn proxy_with(user: &Credential, value: &[u8]) -> Credential {
    let extensions: &[(&str, bool, &[u8])] =
        &[(PROXY_CERT_INFO, true, INHERIT_ALL), ("1.3.6.1.4.1.8005.100.100.5", false, value)];
    Forged { extensions, ..Forged::proxy(user) }.below(user)
}

#[test]
fn claims_are_verified_against_authorised_signers() {
    let site = Site::new();
    let user = site.user();
    let server = site.ca.issue_host(&["voms.example.org"], 10).unwrap();
    let proxy = proxy_with(&user, &attributes(&server, &user));
    site.trust().verify(&chain(&proxy), Timestamp::now()).unwrap();
    let claims = voms_claims(&chain(&proxy));
    let [claim] = &claims[..] else { panic!("{claims:?}") };
    assert_eq!(claim.authority.as_deref(), Some("atlas://voms.example.org:15001"));
    assert_eq!(claim.fqans, ["/atlas", "/atlas/Role=production"]);

    let directory = site.path("vomsdir");
    let now = Timestamp::now();
    let verify =
        |claim: &ropewalk_gsi::VomsClaim| claim.verify(user.certificate(), &directory, &site.trust(), now);
    assert!(matches!(verify(claim), Err(VomsError::NoSigners { .. })));
    std::fs::create_dir_all(directory.join("atlas")).unwrap();
    let list = directory.join("atlas/voms.example.org.lsc");
    std::fs::write(&list, "/O=Grid/CN=another\n/O=Grid/OU=test/CN=Test CA\n").unwrap();
    assert!(matches!(verify(claim), Err(VomsError::Signer { .. })));
    std::fs::write(&list, format!("{}\n/O=Grid/OU=test/CN=Test CA\n", server.subject())).unwrap();
    verify(claim).unwrap();
    let late = claim.verify(user.certificate(), &directory, &site.trust(), Timestamp(4_200_000_000));
    assert!(late.is_err());

    // Issued to another holder.
    let other = site.ca.issue_user("Other", 10).unwrap();
    let stolen = proxy_with(&user, &attributes(&server, &other));
    let error = verify(&voms_claims(&chain(&stolen))[0]).unwrap_err();
    assert!(matches!(error, VomsError::Holder { .. }), "{error}");
    // Another role than the signed one.
    let mut value = attributes(&server, &user);
    let at = value.windows(10).position(|window| window == b"production").unwrap();
    value[at..at + 10].copy_from_slice(b"prodaction");
    let error = verify(&voms_claims(&chain(&proxy_with(&user, &value)))[0]).unwrap_err();
    assert!(matches!(error, VomsError::Signature), "{error}");
    // Critical extensions, such as those about its targets, must be understood (RFC 5755 section
    // 4.3.2).
    for (last, value, believed) in [(55, 0xff, false), (99, 0xff, false), (99, 0, true), (56, 0xff, true)] {
        let extension = sequence(&[
            &element(6, &[&[0x55, 29, last]]),
            &element(1, &[&[value]]),
            &element(4, &[&sequence(&[])]),
        ]);
        let proxy = proxy_with(&user, &attributes_and(&server, &user, &extension));
        let verified = verify(&voms_claims(&chain(&proxy))[0]);
        assert_eq!(verified.is_ok(), believed, "{last}: {verified:?}");
        let said = verified.err().map(|error| error.to_string()).unwrap_or_default();
        let wanted = if last == 55 { "only for hosts" } else { "not understood: 2.5.29.99" };
        assert!(believed || said.contains(wanted), "{said}");
    }
    // A server of an untrusted authority.
    let elsewhere = Site::new();
    let stranger = elsewhere.ca.issue_host(&["voms.example.org"], 10).unwrap();
    let error =
        verify(&voms_claims(&chain(&proxy_with(&user, &attributes(&stranger, &user))))[0]).unwrap_err();
    assert!(matches!(error, VomsError::Chain(_)), "{error}");
}
