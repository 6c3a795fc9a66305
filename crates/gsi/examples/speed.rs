//! Measures how fast records are protected and read in memory, on one core for each side in turn,
//! and how long a handshake takes: `cargo run --release -p ropewalk-gsi --example speed`. Compare
//! with `openssl speed -evp aes-256-gcm -bytes 16384`.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use ropewalk_gsi::{
    Acceptor, AcceptorOptions, After, Expected, Identity, Initiator, InitiatorOptions, Session, Step,
    TlsSettings, Trust, dcsc,
};
use ropewalk_tls::Opened;

const BLOCK: usize = 256 << 10;
const ROUNDS: usize = 2000;

fn sessions(identity: &Identity, expected: &Expected) -> Result<(Session, Session), Box<dyn Error>> {
    let options = InitiatorOptions {
        expected: expected.clone(),
        delegate: None,
        after: After::Nothing,
        server_name: None,
    };
    let mut initiator = Initiator::new(identity, options)?;
    let options = AcceptorOptions {
        expected: expected.clone(),
        after: After::Nothing,
        accept_limited: true,
        ..AcceptorOptions::default()
    };
    let mut acceptor = Acceptor::new(identity, options)?;
    let (mut one, mut other, mut token) = (None, None, Vec::new());
    while one.is_none() || other.is_none() {
        if one.is_none() {
            token = match initiator.step(&token)? {
                Step::Continue(token) => token,
                Step::Done(token, session) => {
                    one = Some(*session);
                    token
                }
            };
        }
        if other.is_none() {
            token = match acceptor.step(&token)? {
                Step::Continue(token) => token,
                Step::Done(token, session) => {
                    other = Some(*session);
                    token
                }
            };
        }
    }
    one.zip(other).ok_or_else(|| "no session".into())
}

fn main() -> Result<(), Box<dyn Error>> {
    let credential = Arc::new(dcsc::self_signed(3600)?);
    let trust = Arc::new(Trust::anchors(vec![credential.certificate().clone()]));
    let expected = Expected::Subject(credential.identity().to_owned());
    let identity = Identity::new(credential, trust, &TlsSettings::default())?;
    let began = Instant::now();
    let handshakes = 100;
    for _ in 1..handshakes {
        sessions(&identity, &expected)?;
    }
    let (one, other) = sessions(&identity, &expected)?;
    println!("{:?}: {:?} a handshake, both sides", one, began.elapsed() / handshakes);
    let (mut one, mut other) = (one.into_records(), other.into_records());
    let block = vec![0x5a; BLOCK];
    let (mut sealed, mut plain) = (Vec::new(), vec![0; BLOCK + 1]);
    let (mut sealing, mut opening) = (0.0, 0.0);
    for _ in 0..ROUNDS {
        sealed.clear();
        let began = Instant::now();
        one.seal(&block, &mut sealed)?;
        sealing += began.elapsed().as_secs_f64();
        let began = Instant::now();
        // A socket would deliver the bytes with the same copy, made by the kernel.
        other.room(sealed.len())[..sealed.len()].copy_from_slice(&sealed);
        other.received(sealed.len());
        let mut count = 0;
        while let Opened::Bytes(more) = other.read(&mut plain[count..])? {
            count += more;
        }
        opening += began.elapsed().as_secs_f64();
        assert_eq!(count, BLOCK);
    }
    let rate = |seconds: f64| (BLOCK * ROUNDS) as f64 / seconds / 1e9;
    println!("sealed {:.2} GB/s, opened {:.2} GB/s", rate(sealing), rate(opening));
    Ok(())
}
