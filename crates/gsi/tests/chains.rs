//! Chains that must be refused, each with its own reason in the message.
#![allow(clippy::unwrap_used)]

mod common;

use common::Site;
use openssl::asn1::{Asn1Object, Asn1OctetString, Asn1Time, Asn1Type};
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::rsa::Rsa;
use openssl::sha::sha1;
use openssl::x509::{
    X509, X509CrlBuilder, X509Extension, X509NameBuilder, X509NameRef, X509ReqBuilder, X509RevokedBuilder,
};
use ropewalk_gsi::testing::{Forged, INHERIT_ALL, PROXY_CERT_INFO as PCI, chain, key, name};
use ropewalk_gsi::{
    ChainError, Credential, Expected, ProxyKind, ProxyTerms, Rights, Timestamp, Trust, WrongPeer,
    create_proxy, sign_request,
};

const UNKNOWN_LANGUAGE: &[u8] = &[0x30, 6, 0x30, 4, 6, 2, 0x2a, 3];
const HOUR: i64 = 3600;

fn proxy(issuer: &Credential, rights: Rights, path_length: Option<u64>) -> Credential {
    let terms = ProxyTerms { kind: ProxyKind::Rfc3820(rights), path_length, ..ProxyTerms::default() };
    create_proxy(issuer, 2048, &terms, Timestamp::now()).unwrap()
}

fn refused(trust: &Trust, credential: &Credential) -> ChainError {
    let error = trust.verify(&chain(credential), Timestamp::now()).unwrap_err();
    eprintln!("{error}");
    error
}

#[test]
fn verify_checks_the_rules_of_proxies() {
    let site = Site::new();
    let trust = site.trust();
    let user = site.user();
    let one = Forged::proxy(&user).below(&user);
    let peer = trust.verify(&chain(&one), Timestamp::now()).unwrap();
    assert_eq!((peer.identity.as_str(), peer.proxies), (user.subject(), 1));
    assert_eq!(peer.chain.len(), 3);

    let limited = proxy(&user, Rights::Limited, None);
    assert!(matches!(
        refused(&trust, &Forged::proxy(&limited).below(&limited)),
        ChainError::LimitedProxy { .. }
    ));
    let last = proxy(&user, Rights::All, Some(0));
    assert!(matches!(
        refused(&trust, &Forged::proxy(&last).below(&last)),
        ChainError::ProxyPathLength { .. }
    ));
    // The limit also holds below proxies that do not repeat it.
    let once = proxy(&user, Rights::All, Some(1));
    let second = Forged::proxy(&once).below(&once);
    trust.verify(&chain(&second), Timestamp::now()).unwrap();
    assert!(matches!(
        refused(&trust, &Forged::proxy(&second).below(&second)),
        ChainError::ProxyPathLength { .. }
    ));

    let two_names = Forged { more: &["7", "8"], ..Forged::proxy(&user) };
    assert!(matches!(refused(&trust, &two_names.below(&user)), ChainError::ProxyName { .. }));
    let wrong_key = Forged { signer: &key(), ..Forged::proxy(&user) };
    assert!(matches!(refused(&trust, &wrong_key.below(&user)), ChainError::BadSignature { .. }));
    let legacy = Forged { more: &["proxy"], extensions: &[], ..Forged::proxy(&one) };
    assert!(matches!(refused(&trust, &legacy.below(&one)), ChainError::MixedProxies { .. }));
    let language = Forged { extensions: &[(PCI, true, UNKNOWN_LANGUAGE)], ..Forged::proxy(&user) };
    assert!(matches!(refused(&trust, &language.below(&user)), ChainError::RestrictedProxy { .. }));
    let extra = [(PCI, true, INHERIT_ALL), ("1.2.3.4", true, &[5, 0][..])];
    let critical = Forged { extensions: &extra, ..Forged::proxy(&user) };
    assert!(matches!(refused(&trust, &critical.below(&user)), ChainError::CriticalExtension { .. }));
    let names = [(PCI, true, INHERIT_ALL), ("2.5.29.17", false, &[0x30, 3, 0x82, 1, b'a'][..])];
    let named = Forged { extensions: &names, ..Forged::proxy(&user) };
    assert!(matches!(refused(&trust, &named.below(&user)), ChainError::MalformedProxy { .. }));
    let rights = [(PCI, true, INHERIT_ALL), ("2.5.29.19", true, &[0x30, 3, 1, 1, 0xff][..])];
    let authority = Forged { extensions: &rights, ..Forged::proxy(&user) };
    assert!(matches!(refused(&trust, &authority.below(&user)), ChainError::MalformedProxy { .. }));
    let twice = [(PCI, true, INHERIT_ALL), ("1.3.6.1.4.1.3536.1.222", true, INHERIT_ALL)];
    let two_marks = Forged { extensions: &twice, ..Forged::proxy(&user) }.make(&key());
    let error = trust.verify(&[two_marks, user.certificate().clone()], Timestamp::now()).unwrap_err();
    assert!(matches!(error, ChainError::Unreadable { index: 0, .. }), "{error}");
    let weak = Forged { digest: MessageDigest::md5(), ..Forged::proxy(&user) }.below(&user);
    assert!(matches!(refused(&trust, &weak), ChainError::WeakDigest { digest: "MD5", .. }));
    site.trust().allow_md5(true).verify(&chain(&weak), Timestamp::now()).unwrap();
    let small = PKey::from_rsa(Rsa::generate(768).unwrap()).unwrap();
    let small = [Forged::proxy(&user).make(&small), user.certificate().clone()];
    let error = trust.verify(&small, Timestamp::now()).unwrap_err();
    assert!(matches!(error, ChainError::WeakKey { bits: 768, .. }), "{error}");
    let orphan = trust.verify(&[one.certificate().clone()], Timestamp::now()).unwrap_err();
    assert!(matches!(orphan, ChainError::ProxyIssuer { .. }), "{orphan}");
    let independent = proxy(&user, Rights::Independent, None);
    let peer = trust.verify(&chain(&independent), Timestamp::now()).unwrap();
    assert_eq!(peer.identity, independent.subject());
}

#[test]
fn verify_refuses_long_chains_and_loops() {
    let site = Site::new();
    let user = site.user();
    let mut deep = vec![user.certificate().clone(); 100];
    let error = site.trust().verify(&deep, Timestamp::now()).unwrap_err();
    assert!(matches!(error, ChainError::TooLong { length: 100, .. }), "{error}");
    assert!(matches!(site.trust().verify(&[], Timestamp::now()), Err(ChainError::Empty)));
    // A proxy that names itself as its issuer.
    let own = key();
    let name = name("/CN=proxy");
    let round =
        Forged { issuer: &name, signer: &own, base: &name, more: &[], ..Forged::proxy(&user) }.make(&own);
    deep = vec![round.clone(), round.clone(), round];
    let error = site.trust().verify(&deep, Timestamp::now()).unwrap_err();
    assert!(matches!(error, ChainError::ProxyIssuer { .. }), "{error}");
}

#[test]
fn verify_refuses_expired_and_future_certificates() {
    let site = Site::new();
    let trust = site.trust();
    let user = site.user();
    let short = ProxyTerms { lifetime: 60, ..ProxyTerms::default() };
    let proxy = create_proxy(&user, 2048, &short, Timestamp::now()).unwrap();
    let now = Timestamp::now();
    let late = trust.verify(&chain(&proxy), Timestamp(now.0 + 120)).unwrap_err();
    assert!(
        late.to_string().contains(&format!("{} expired at {}", proxy.subject(), proxy.not_after())),
        "{late}"
    );
    let late = trust.verify(&chain(&user), Timestamp(now.0 + 11 * 24 * HOUR)).unwrap_err();
    assert!(matches!(&late, ChainError::Expired { subject, .. } if subject == user.subject()), "{late}");
    let early = trust.verify(&chain(&user), Timestamp(now.0 - HOUR)).unwrap_err();
    assert!(matches!(early, ChainError::NotYetValid { .. }), "{early}");
    assert!(create_proxy(&user, 2048, &short, Timestamp(now.0 + 11 * 24 * HOUR)).is_err());
}

#[test]
fn verify_refuses_unknown_authorities_and_broken_policies() {
    let site = Site::new();
    let user = site.user();
    let hash = site.ca.install(&site.certificates(), 10).unwrap();
    let file = |end: &str| site.certificates().join(format!("{hash}.{end}"));

    let nowhere = Trust::directory(site.path("nowhere"));
    let error = refused(&nowhere, &user);
    assert!(error.to_string().contains(&format!("{hash}.0")), "{error}");
    // The same name with another key.
    let other = Site::new();
    assert!(matches!(
        refused(&other.trust(), &user),
        ChainError::BadSignature { .. } | ChainError::UnknownAuthority { .. }
    ));
    let own = key();
    let subject = user.certificate().subject_name();
    let alone = Forged { issuer: subject, signer: &own, ..Forged::signed_by(&user, subject) }.alone();
    assert!(matches!(refused(&site.trust(), &alone), ChainError::SelfSigned { .. }));
    // A trust anchor is accepted without a check of its signature.
    Trust::anchors(vec![alone.certificate().clone()]).verify(&chain(&alone), Timestamp::now()).unwrap();

    let policy = std::fs::read_to_string(file("signing_policy")).unwrap();
    std::fs::write(file("signing_policy"), policy.replace("OU=test/*", "OU=other/*")).unwrap();
    assert!(matches!(refused(&site.trust(), &user), ChainError::SigningPolicy { .. }));
    std::fs::write(file("signing_policy"), "access_id_CA X509 '").unwrap();
    assert!(matches!(refused(&site.trust(), &user), ChainError::BadSigningPolicy { .. }));
    std::fs::remove_file(file("signing_policy")).unwrap();
    assert!(matches!(refused(&site.trust(), &user), ChainError::NoSigningPolicy { .. }));
}

#[test]
fn verify_refuses_revoked_certificates_and_expired_lists() {
    let site = Site::new();
    let user = site.user();
    let hash = site.ca.install(&site.certificates(), 10).unwrap();
    let list = site.certificates().join(format!("{hash}.r0"));
    let now = Timestamp::now();
    let stale = site.trust().verify(&chain(&user), Timestamp(now.0 + 10 * 24 * HOUR + 600));
    assert!(matches!(stale, Err(ChainError::Expired { .. } | ChainError::ExpiredCrl { .. })), "{stale:?}");
    site.ca.install(&site.certificates(), 1).unwrap();
    let stale = site.trust().verify(&chain(&user), Timestamp(now.0 + 2 * 24 * HOUR)).unwrap_err();
    assert!(matches!(stale, ChainError::ExpiredCrl { .. }), "{stale}");
    site.ca.revoke(user.certificate()).unwrap();
    site.ca.revoke(user.certificate()).unwrap();
    site.ca.install(&site.certificates(), 10).unwrap();
    let error = refused(&site.trust(), &user);
    assert!(error.to_string().contains(user.subject()) && error.to_string().contains("revoked"), "{error}");
    assert!(matches!(refused(&site.trust(), &proxy(&user, Rights::All, None)), ChainError::Revoked { .. }));
    let other = Site::new();
    std::fs::copy(other.certificates().join(format!("{hash}.r0")), &list).unwrap();
    assert!(matches!(refused(&site.trust(), &user), ChainError::ForgedCrl { .. }));
    std::fs::write(&list, "nothing").unwrap();
    assert!(matches!(refused(&site.trust(), &user), ChainError::UnreadableCrl { .. }));
    std::fs::remove_file(&list).unwrap();
    site.trust().verify(&chain(&user), now).unwrap();
    assert!(matches!(refused(&site.trust().require_crl(true), &user), ChainError::NoCrl { .. }));
}

/// A revocation list of any issuer, as PEM; `key` may be of any kind.
fn list(issuer: &X509NameRef, key: &PKey<Private>, revoked: Option<&X509>) -> Vec<u8> {
    let at = |hours: i64| Asn1Time::from_unix(Timestamp::now().0 + hours * HOUR).unwrap();
    let mut list = X509CrlBuilder::new().unwrap();
    list.set_issuer_name(issuer).unwrap();
    list.set_last_update(&at(-1)).unwrap();
    list.set_next_update(&at(24)).unwrap();
    if let Some(certificate) = revoked {
        let mut entry = X509RevokedBuilder::new().unwrap();
        entry.set_serial_number(certificate.serial_number()).unwrap();
        entry.set_revocation_date(&at(-1)).unwrap();
        list.add_revoked(entry.build()).unwrap();
    }
    // RFC 5280 section 5.2 requires both extensions.
    let identifier = sha1(&key.public_key_to_der().unwrap());
    let authority = [&[0x30, 22, 0x80, 20], &identifier[..]].concat();
    for (oid, value) in [("2.5.29.35", &authority[..]), ("2.5.29.20", &[2, 1, 1])] {
        let oid = Asn1Object::from_str(oid).unwrap();
        let value = Asn1OctetString::new_from_bytes(value).unwrap();
        list.append_extension(X509Extension::new_from_der(&oid, false, &value).unwrap()).unwrap();
    }
    list.sign(key, MessageDigest::sha256()).unwrap();
    list.build().unwrap().to_pem().unwrap()
}

/// An authority may encode its name as another string type, and its file may contain other lists.
#[test]
fn verify_finds_revocation_lists_in_any_encoding() {
    let site = Site::new();
    let user = site.user();
    let hash = site.ca.install(&site.certificates(), 10).unwrap();
    let file = site.certificates().join(format!("{hash}.r0"));
    let authority = site.authority();
    let own = authority.certificate().subject_name();
    let mut printable = X509NameBuilder::new().unwrap();
    for entry in own.entries() {
        let text = std::str::from_utf8(entry.data().as_slice()).unwrap();
        printable
            .append_entry_by_nid_with_type(entry.object().nid(), text, Asn1Type::PRINTABLESTRING)
            .unwrap();
    }
    let printable = printable.build();
    assert_ne!(printable.to_der().unwrap(), own.to_der().unwrap());
    let good = list(own, authority.key(), None);
    let revoking = list(own, authority.key(), Some(user.certificate()));
    std::fs::write(&file, list(&printable, authority.key(), Some(user.certificate()))).unwrap();
    assert!(matches!(refused(&site.trust(), &user), ChainError::Revoked { .. }));
    let others = list(&name("/O=Other/CN=CA"), &key(), None);
    for several in [[&good[..], &revoking], [&others, &revoking]] {
        std::fs::write(&file, several.concat()).unwrap();
        assert!(matches!(refused(&site.trust(), &user), ChainError::Revoked { .. }));
    }
    let several = [&good[..], &revoking[..revoking.len() - 30]].concat();
    std::fs::write(&file, several).unwrap();
    assert!(matches!(refused(&site.trust(), &user), ChainError::UnreadableCrl { .. }));
}

/// An authority that has changed its key has two certificates with one name, each with its own
/// list.
#[test]
fn verify_with_two_authorities_of_one_name_uses_own_lists() {
    let site = Site::new();
    let (user, now) = (site.user(), Timestamp::now());
    let hash = site.ca.install(&site.certificates(), 10).unwrap();
    let file = |name: &str| site.certificates().join(format!("{hash}.{name}"));
    let authority = site.authority();
    let own = authority.certificate().subject_name();
    let curve = EcKey::generate(&EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap()).unwrap();
    for other in [key(), PKey::from_ec_key(curve).unwrap()] {
        let constraints = [("2.5.29.19", true, &[0x30, 3, 1, 1, 0xff][..])];
        let other_authority =
            Forged { signer: &other, extensions: &constraints, ..Forged::signed_by(&authority, own) }
                .make(&other);
        std::fs::write(file("r0"), list(own, &other, Some(user.certificate()))).unwrap();
        std::fs::write(file("r1"), list(own, authority.key(), None)).unwrap();
        // No trusted authority has signed this list.
        assert!(matches!(refused(&site.trust(), &user), ChainError::ForgedCrl { .. }));
        assert!(site.trust().doubts(now).iter().any(|text| text.contains("is not signed by")));
        std::fs::write(file("1"), other_authority.to_pem().unwrap()).unwrap();
        site.trust().verify(&chain(&user), now).unwrap();
        site.trust().require_crl(true).verify(&chain(&user), now).unwrap();
        assert!(!site.trust().doubts(now).iter().any(|text| text.contains("is not signed by")));
        std::fs::write(file("r1"), list(own, authority.key(), Some(user.certificate()))).unwrap();
        assert!(matches!(refused(&site.trust(), &user), ChainError::Revoked { .. }));
        // The list of the other authority does not apply to this one.
        std::fs::remove_file(file("r1")).unwrap();
        assert!(matches!(refused(&site.trust().require_crl(true), &user), ChainError::NoCrl { .. }));
        std::fs::remove_file(file("1")).unwrap();
    }
}

/// A revocation list that is configured but cannot be read is an error.
#[test]
fn verify_with_unreadable_lists_fails() {
    let site = Site::new();
    let (user, now) = (site.user(), Timestamp::now());
    let hash = site.ca.install(&site.certificates(), 10).unwrap();
    let file = |name: &str| site.certificates().join(format!("{hash}.{name}"));
    site.trust().verify(&chain(&user), now).unwrap();
    let _ = std::fs::remove_file(file("r0"));
    for target in ["nowhere", file("r0").to_str().unwrap()] {
        std::os::unix::fs::symlink(target, file("r0")).unwrap();
        assert!(matches!(refused(&site.trust(), &user), ChainError::Unread { .. }), "{target}");
        std::fs::remove_file(file("r0")).unwrap();
    }
    // A problem with an authority's file is reported unless there is another authority of this
    // name.
    let pem = std::fs::read(file("0")).unwrap();
    std::fs::write(file("0"), X509::from_pem(&pem).unwrap().to_der().unwrap()).unwrap();
    assert!(matches!(refused(&site.trust(), &user), ChainError::NoCertificate { .. }));
    std::fs::write(file("1"), &pem).unwrap();
    site.trust().verify(&chain(&user), now).unwrap();
    std::fs::remove_file(file("0")).unwrap();
    std::os::unix::fs::symlink(file("0"), file("0")).unwrap();
    site.trust().verify(&chain(&user), now).unwrap();
    std::fs::remove_file(file("1")).unwrap();
    assert!(matches!(refused(&site.trust(), &user), ChainError::Unread { .. }));
}

/// Some authorities have re-encoded their name as another string type.
#[test]
fn verify_compares_names_across_string_types() {
    let site = Site::new();
    let authority = site.authority();
    let hash = site.ca.install(&site.certificates(), 10).unwrap();
    let mut other = X509NameBuilder::new().unwrap();
    for entry in authority.certificate().subject_name().entries() {
        let text = std::str::from_utf8(entry.data().as_slice()).unwrap();
        let nid = entry.object().nid();
        other.append_entry_by_nid_with_type(nid, text, Asn1Type::PRINTABLESTRING).unwrap();
    }
    let other = other.build();
    assert_ne!(other.to_der().unwrap(), authority.certificate().subject_name().to_der().unwrap());
    let constraints = [("2.5.29.19", true, &[0x30, 3, 1, 1, 0xff][..])];
    let written = Forged { extensions: &constraints, ..Forged::signed_by(&authority, &other) };
    let path = site.certificates().join(format!("{hash}.0"));
    std::fs::write(path, written.make(authority.key()).to_pem().unwrap()).unwrap();
    let written = site.trust().verify(&chain(&site.user()), Timestamp::now());
    written.unwrap_or_else(|error| panic!("{error}"));
}

/// Any peer could make this side spend any amount of CPU time on such keys.
#[test]
fn verify_refuses_keys_that_are_too_large() {
    let site = Site::new();
    let user = site.user();
    let exponent = BigNum::from_hex_str("10000000000000001").unwrap();
    let rsa = Rsa::generate_with_e(2048, &exponent).unwrap();
    let slow = PKey::from_rsa(rsa).unwrap();
    let issuer =
        Forged { signer: &slow, ..Forged::signed_by(&user, user.certificate().subject_name()) }.make(&slow);
    let proxy = Forged::proxy(&user).below(&user);
    let chain = [proxy.certificate().clone(), issuer];
    let error = site.trust().verify(&chain, Timestamp::now()).unwrap_err();
    assert!(matches!(error, ChainError::HugeKey { .. }), "{error}");
}

/// An independent proxy has none of the rights of its issuer, and any process may hold it.
#[test]
fn host_check_refuses_independent_proxies() {
    let site = Site::new();
    let check = |credential: &Credential| {
        let peer = site.trust().verify(&chain(credential), Timestamp::now()).unwrap();
        Expected::host("localhost").check(&peer)
    };
    let host = site.host();
    let limited = proxy(host, Rights::Limited, None);
    for good in [host, &limited, &proxy(&limited, Rights::Limited, None)] {
        assert_eq!(check(good), Ok(()));
    }
    let alone = proxy(host, Rights::Independent, None);
    for wrong in [&alone, &proxy(&alone, Rights::All, None), &proxy(&limited, Rights::Independent, None)] {
        let error = check(wrong).unwrap_err();
        assert!(matches!(error, WrongPeer::Independent { .. }), "{error}");
    }
}

/// An attacker who computes a key can impersonate its owner, so weak keys are neither accepted nor
/// certified.
#[test]
fn weak_keys_are_neither_accepted_nor_certified() {
    let site = Site::new();
    let (trust, user) = (site.trust(), site.user());
    let curve =
        |nid| PKey::from_ec_key(EcKey::generate(&EcGroup::from_curve_name(nid).unwrap()).unwrap()).unwrap();
    let request = |key: &PKey<Private>| {
        let mut request = X509ReqBuilder::new().unwrap();
        request.set_pubkey(key).unwrap();
        request.sign(key, MessageDigest::sha256()).unwrap();
        request.build().to_der().unwrap()
    };
    for (key, weak) in [
        (PKey::from_rsa(Rsa::generate(512).unwrap()).unwrap(), Some("512 bits; 1024 are the least")),
        (curve(Nid::SECP112R1), Some("112 bits; 160 are the least")),
        (PKey::from_rsa(Rsa::generate(1024).unwrap()).unwrap(), None),
        (curve(Nid::X9_62_PRIME256V1), None),
    ] {
        let made = Forged::proxy(&user).make(&key);
        let proxy = Credential::new(made, chain(&user), key.clone()).unwrap();
        let verified =
            trust.verify(&chain(&proxy), Timestamp::now()).map(drop).map_err(|error| error.to_string());
        let signed = sign_request(&user, &request(&key), &ProxyTerms::default(), Timestamp::now());
        match weak {
            None => assert!(verified.is_ok() && signed.is_ok(), "{verified:?} {signed:?}"),
            Some(words) => {
                assert!(verified.unwrap_err().contains(words));
                assert!(signed.unwrap_err().to_string().contains("which others could find"));
            }
        }
    }
}
