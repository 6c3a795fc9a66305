//! Mutual TLS: with the provider, and of its calls to the listener.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use openssl::asn1::Asn1Time;
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::ssl::{SslAcceptor, SslConnector, SslMethod, SslVerifyMode};
use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
use openssl::x509::{X509, X509NameBuilder};
use ropewalk_nsi::Nsi;
use ropewalk_paths::{Entry, Order, Outcome, Owner, Provider as _, Request, Step, now};
use ropewalk_tests::nsi_provider::{CONNECTION, PROVIDER, REQUESTER, free_port, message};

struct Certified {
    certificate: X509,
    key: PKey<Private>,
}

impl Certified {
    /// A certificate for this host name, by this authority or by itself.
    fn new(name: &str, authority: Option<&Self>) -> Self {
        let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
        let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
        let mut subject = X509NameBuilder::new().unwrap();
        subject.append_entry_by_nid(Nid::COMMONNAME, name).unwrap();
        let subject = subject.build();
        let mut builder = X509::builder().unwrap();
        builder.set_version(2).unwrap();
        builder.set_serial_number(&BigNum::from_u32(1).unwrap().to_asn1_integer().unwrap()).unwrap();
        builder.set_subject_name(&subject).unwrap();
        builder.set_issuer_name(authority.map_or(&subject, |ca| ca.certificate.subject_name())).unwrap();
        builder.set_pubkey(&key).unwrap();
        builder.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
        builder.set_not_after(&Asn1Time::days_from_now(1).unwrap()).unwrap();
        match authority {
            Some(_) => {
                let context = builder.x509v3_context(None, None);
                let names = SubjectAlternativeName::new().dns(name).build(&context).unwrap();
                builder.append_extension(names).unwrap();
            }
            None => {
                builder.append_extension(BasicConstraints::new().critical().ca().build().unwrap()).unwrap();
            }
        }
        builder.sign(authority.map_or(&key, |ca| &ca.key), MessageDigest::sha256()).unwrap();
        Self { certificate: builder.build(), key }
    }

    fn write(&self, directory: &Path, name: &str) {
        fs::write(directory.join(format!("{name}.pem")), self.certificate.to_pem().unwrap()).unwrap();
        // Not PKCS #8.
        let key = self.key.ec_key().unwrap().private_key_to_pem().unwrap();
        fs::write(directory.join(format!("{name}.key")), key).unwrap();
    }
}

struct Site {
    directory: tempfile::TempDir,
    authority: Certified,
    port: u16,
}

impl Site {
    fn new(provider: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (authority, port) = (Certified::new("authority", None), free_port().unwrap());
        authority.write(directory.path(), "ca");
        Certified::new("localhost", Some(&authority)).write(directory.path(), "own");
        let file = format!(
            "provider = \"{provider}\"\nprovider-id = \"{PROVIDER}\"\nrequester-id = \"{REQUESTER}\"\n\
             callback = \"https://localhost:{port}/nsi\"\ncallback-listen = \"127.0.0.1:{port}\"\n\
             source = \"urn:ogf:network:a?vlan=1\"\ndestination = \"urn:ogf:network:b?vlan=1\"\ncapacity = \"1Gbit/s\"\n\
             [tls]\ncertificate = \"own.pem\"\nkey = \"own.key\"\nauthorities = \"ca.pem\"\n"
        );
        fs::write(directory.path().join("nsi.toml"), file).unwrap();
        Self { directory, authority, port }
    }

    fn open(&self) -> Nsi {
        Nsi::open(&self.directory.path().join("nsi.toml")).unwrap()
    }

    /// Posts a message to the listener. `None`: it does not accept the caller.
    fn call(&self, caller: Option<&Certified>, text: &str) -> Option<String> {
        let mut connector = SslConnector::builder(SslMethod::tls()).unwrap();
        connector.cert_store_mut().add_cert(self.authority.certificate.clone()).unwrap();
        if let Some(Certified { certificate, key }) = caller {
            connector.set_certificate(certificate).unwrap();
            connector.set_private_key(key).unwrap();
        }
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut stream = connector.build().connect("localhost", stream).ok()?;
        let length = text.len();
        write!(stream, "POST /nsi HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{text}").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer).filter(|answer| !answer.is_empty())
    }
}

fn hold() -> Order {
    let until = now() + Duration::from_secs(3600);
    let request = Request { from: None, until, capacity: None, description: String::new() };
    let id = Entry::new(String::new(), Owner::Transfer, request.clone()).id;
    Order { id, number: 1, step: Step::Hold, reference: None, request }
}

#[test]
fn provider_and_requester_authenticate_each_other() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let site = Site::new(&format!("https://localhost:{}/", listener.local_addr().unwrap().port()));
    let provider = Certified::new("localhost", Some(&site.authority));
    let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls()).unwrap();
    acceptor.set_certificate(&provider.certificate).unwrap();
    acceptor.set_private_key(&provider.key).unwrap();
    acceptor.cert_store_mut().add_cert(site.authority.certificate.clone()).unwrap();
    acceptor.set_verify(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT);
    let acceptor = acceptor.build();
    let serving = std::thread::spawn(move || {
        let mut stream = acceptor.accept(listener.accept().unwrap().0).unwrap();
        let (mut text, mut some) = (String::new(), [0; 4096]);
        while !text.contains("Envelope>\n") {
            let read = stream.read(&mut some).unwrap();
            text += &String::from_utf8_lossy(&some[..read]);
        }
        let correlation = text.split("correlationId>").nth(1).unwrap().trim_end_matches("</");
        let answer = format!(
            "<ctypes:reserveResponse><connectionId>{CONNECTION}</connectionId></ctypes:reserveResponse>"
        );
        let answer = message(correlation, &answer);
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{answer}", answer.len()).unwrap();
    });
    let mut nsi = site.open();
    assert_eq!(nsi.send(&hold()), Outcome::Accepted);
    assert_eq!(nsi.reference().as_deref(), Some(CONNECTION));
    serving.join().unwrap();
}

#[test]
fn provider_of_another_authority_gets_no_request() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let site = Site::new(&format!("https://localhost:{}/", listener.local_addr().unwrap().port()));
    let other = Certified::new("localhost", Some(&Certified::new("authority", None)));
    let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls()).unwrap();
    acceptor.set_certificate(&other.certificate).unwrap();
    acceptor.set_private_key(&other.key).unwrap();
    let acceptor = acceptor.build();
    let serving = std::thread::spawn(move || acceptor.accept(listener.accept().unwrap().0).is_err());
    let outcome = site.open().send(&hold());
    assert!(matches!(&outcome, Outcome::NotSent(why) if why.contains("cannot be reached")), "{outcome:?}");
    assert!(serving.join().unwrap());
}

#[test]
fn listener_hears_only_the_provider() {
    let site = Site::new("https://localhost:1/");
    let nsi = site.open();
    let text = message("urn:uuid:00000000-0000-4000-8000-000000000000", "<ctypes:acknowledgment/>");
    assert_eq!(site.call(None, &text), None);
    let stranger = Certified::new("localhost", Some(&Certified::new("authority", None)));
    assert_eq!(site.call(Some(&stranger), &text), None);
    let other_host = Certified::new("mallory.example", Some(&site.authority));
    assert_eq!(site.call(Some(&other_host), &text), None);
    let provider = Certified::new("localhost", Some(&site.authority));
    let answer = site.call(Some(&provider), &text).unwrap();
    assert!(answer.contains("does not expect this message"), "{answer}");
    drop(nsi);
}
