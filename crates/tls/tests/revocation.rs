//! Revocation lists if several authorities have one name, such as an authority that has changed its
//! key.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use openssl::asn1::{Asn1Integer, Asn1Object, Asn1OctetString, Asn1Time};
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::rsa::Rsa;
use openssl::sha::sha1;
use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
use openssl::x509::{
    X509, X509Builder, X509CrlBuilder, X509Extension, X509Name, X509NameBuilder, X509RevokedBuilder,
};
use ropewalk_tls::{
    Binding, Client, ClientSettings, Distrust, Server, ServerSettings, SslVersion, revocation_lists,
};

struct Authority {
    certificate: X509,
    key: PKey<Private>,
}

fn name(common: &str) -> X509Name {
    let mut builder = X509NameBuilder::new().unwrap();
    builder.append_entry_by_text("CN", common).unwrap();
    builder.build()
}

fn days(count: u32) -> Asn1Time {
    Asn1Time::days_from_now(count).unwrap()
}

fn begin(subject: &str, key: &PKey<Private>) -> X509Builder {
    let mut builder = X509::builder().unwrap();
    builder.set_version(2).unwrap();
    builder.set_serial_number(&serial()).unwrap();
    builder.set_subject_name(&name(subject)).unwrap();
    builder.set_issuer_name(&name("Test CA")).unwrap();
    builder.set_not_before(&days(0)).unwrap();
    builder.set_not_after(&days(5)).unwrap();
    builder.set_pubkey(key).unwrap();
    builder
}

fn serial() -> Asn1Integer {
    Asn1Integer::from_bn(&BigNum::from_u32(7).unwrap()).unwrap()
}

fn curve() -> PKey<Private> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap()
}

impl Authority {
    fn new(key: PKey<Private>) -> Self {
        let mut builder = begin("Test CA", &key);
        builder.append_extension(BasicConstraints::new().critical().ca().build().unwrap()).unwrap();
        builder.sign(&key, MessageDigest::sha256()).unwrap();
        Self { certificate: builder.build(), key }
    }

    fn pem(&self) -> Vec<u8> {
        self.certificate.to_pem().unwrap()
    }

    /// Certificate and key of `localhost`.
    fn host(&self) -> Vec<u8> {
        let key = curve();
        let mut builder = begin("localhost", &key);
        let names = SubjectAlternativeName::new().dns("localhost").build(&builder.x509v3_context(None, None));
        builder.append_extension(names.unwrap()).unwrap();
        builder.sign(&self.key, MessageDigest::sha256()).unwrap();
        [builder.build().to_pem().unwrap(), key.private_key_to_pem_pkcs8().unwrap()].concat()
    }

    /// A list with the host's certificate if `revoked`, otherwise an empty one.
    fn list(&self, revoked: bool) -> Vec<u8> {
        let mut list = X509CrlBuilder::new().unwrap();
        list.set_issuer_name(&name("Test CA")).unwrap();
        list.set_last_update(&days(0)).unwrap();
        list.set_next_update(&days(5)).unwrap();
        if revoked {
            let mut entry = X509RevokedBuilder::new().unwrap();
            entry.set_serial_number(&serial()).unwrap();
            entry.set_revocation_date(&days(0)).unwrap();
            list.add_revoked(entry.build()).unwrap();
        }
        // RFC 5280 section 5.2 requires both extensions.
        let key = sha1(&self.key.public_key_to_der().unwrap());
        for (oid, value) in
            [("2.5.29.35", &[&[0x30, 22, 0x80, 20], &key[..]].concat()[..]), ("2.5.29.20", &[2, 1, 1])]
        {
            let (oid, value) =
                (Asn1Object::from_str(oid).unwrap(), Asn1OctetString::new_from_bytes(value).unwrap());
            list.append_extension(X509Extension::new_from_der(&oid, false, &value).unwrap()).unwrap();
        }
        list.sign(&self.key, MessageDigest::sha256()).unwrap();
        list.build().unwrap().to_pem().unwrap()
    }
}

/// Why the client distrusts the server in this directory.
fn distrust(at: &Path, authorities: &str, revocations: Option<&str>) -> Option<String> {
    let own = at.join("server.pem");
    let (certificate, key) = (own.clone(), own);
    let settings = ServerSettings {
        certificate,
        key,
        client_authorities: None,
        client_revocations: None,
        min_version: SslVersion::TLS1_2,
    };
    let server = Server::new(&settings).unwrap();
    let client = Client::new(&ClientSettings {
        authorities: Some(at.join(authorities)),
        revocations: revocations.map(|name| at.join(name)),
        ..ClientSettings::default()
    });
    let mut client = client.unwrap().connect("localhost").unwrap();
    let mut server = server.accept(&Binding::new().unwrap()).unwrap();
    let (mut up, mut down) = (Vec::new(), Vec::new());
    assert!(client.step(&[], &mut up).unwrap().is_none());
    for _ in 0..10 {
        server.step(&std::mem::take(&mut up), &mut down).unwrap();
        if let Some(established) = client.step(&std::mem::take(&mut down), &mut up).unwrap() {
            return Client::distrust(&established, "localhost").as_ref().map(Distrust::to_string);
        }
    }
    panic!("no end")
}

#[test]
fn revocation_with_two_authorities_of_one_name_uses_own_lists() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let ours = Authority::new(PKey::from_rsa(Rsa::generate(2048).unwrap()).unwrap());
    let hash = format!("{:08x}", ours.certificate.subject_name_hash());
    fs::write(at("server.pem"), ours.host()).unwrap();
    fs::set_permissions(at("server.pem"), PermissionsExt::from_mode(0o600)).unwrap();
    fs::create_dir(at("hashed")).unwrap();
    let hashed = |name: &str| at("hashed").join(format!("{hash}.{name}"));
    // The key of the other authority may be of another kind.
    for other in
        [Authority::new(curve()), Authority::new(PKey::from_rsa(Rsa::generate(2048).unwrap()).unwrap())]
    {
        for (trusted, revoked) in [(false, false), (true, false), (true, true)] {
            let lists = [other.list(true), ours.list(revoked)];
            fs::write(at("lists.pem"), lists.concat()).unwrap();
            fs::write(hashed("r0"), &lists[0]).unwrap();
            fs::write(hashed("r1"), &lists[1]).unwrap();
            fs::write(hashed("0"), ours.pem()).unwrap();
            fs::write(at("ca.pem"), ours.pem()).unwrap();
            let _ = fs::remove_file(hashed("1"));
            if trusted {
                fs::write(at("ca.pem"), [ours.pem(), other.pem()].concat()).unwrap();
                fs::write(hashed("1"), other.pem()).unwrap();
            }
            let words = match (trusted, revoked) {
                (false, _) => Some("is not signed by"),
                (true, false) => None,
                (true, true) => Some("was revoked by"),
            };
            for (authorities, revocations) in
                [("ca.pem", Some("lists.pem")), ("ca.pem", Some("hashed")), ("hashed", None)]
            {
                let told = distrust(directory.path(), authorities, revocations);
                match words {
                    None => assert_eq!(told, None, "{authorities} {revocations:?}"),
                    Some(words) => assert!(told.as_ref().unwrap().contains(words), "{words}: {told:?}"),
                }
            }
        }
    }
}

#[test]
fn revocation_lists_of_truncated_file_is_none() {
    let authority = Authority::new(curve());
    let two = [authority.list(false), authority.list(true)].concat();
    assert_eq!(revocation_lists(&two).unwrap().len(), 2);
    assert!(revocation_lists(&two[..two.len() - 30]).is_none());
    assert!(revocation_lists(b"nothing").is_none());
}
