//! One-time keys: the connections of a data channel prove to each other that they belong to it, and
//! then carry clear data. This is an extension of Ropewalk (`SITE DATAKEY`) for control connections
//! whose security has no mechanism for data connections.
//!
//! | | | bytes |
//! |---|---|---|
//! | connecting side | `RWDK`, 1, `C`, number of the key (8), nonce (16) | 30 |
//! | accepting side | `RWDK`, 1, `A`, nonce (16), HMAC-SHA256(K, `accept` 0 transcript) | 54 |
//! | connecting side | HMAC-SHA256(K, `connect` 0 transcript) | 32 |
//!
//! K is HMAC-SHA256(secret, `ropewalk data key` 0 number). The transcript is the first message and
//! the nonce of the second, and then the channel binding if the driver has one: the two connections
//! of a man in the middle have different ones.
//!
//! The handshake costs one round trip. The connecting side sends no data before the accepting side
//! has proved itself, because another process may have taken over the port. The accepting side
//! sends no data before the third message. The connecting side may send data immediately after that
//! message.

use std::io::{self, ErrorKind, Read};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::pkey::{PKey, Private};
use openssl::sign::Signer;
use ropewalk_transport::{Connection, Interest};

use crate::outgoing::Outgoing;
use crate::reader::over;
use crate::{Assurance, Handshake, Layer, Progress};

const MAGIC: &[u8; 4] = b"RWDK";
const VERSION: u8 = 1;
/// Magic, version, and the letter of the sending side.
const HEAD: usize = 6;
const NUMBER: usize = 8;
const NONCE: usize = 16;
const PROOF: usize = 32;
const HELLO: usize = HEAD + NUMBER + NONCE;
const ANSWER: usize = HEAD + NONCE + PROOF;

/// Makes a new key: random bytes for its secret, and a number above those of all keys that this
/// process made before.
///
/// # Errors
/// The system has no random bytes.
pub fn fresh_key(secret: &mut [u8; 32]) -> io::Result<u64> {
    static LAST: OnceLock<AtomicU64> = OnceLock::new();
    openssl::rand::rand_bytes(secret)?;
    let mut first = [0; 8];
    openssl::rand::rand_bytes(&mut first)?;
    // The first number is random, so that numbers in the logs of several processes differ.
    let last = LAST.get_or_init(|| AtomicU64::new(u64::from_be_bytes(first) >> 1));
    Ok(last.fetch_add(1, Ordering::Relaxed) + 1)
}

/// Connections that prove that they have the key of their data channel.
#[derive(Clone)]
pub struct KeyLayer {
    number: u64,
    /// OpenSSL stores the key and clears it.
    key: PKey<Private>,
}

impl KeyLayer {
    /// Makes the layer for the connections of one data channel. `number` is public, `secret` is
    /// not. Both belong to this channel only.
    ///
    /// # Errors
    /// OpenSSL has no HMAC-SHA256.
    pub fn new(number: u64, secret: &[u8; 32]) -> io::Result<Self> {
        let derive = || {
            let secret = PKey::hmac(secret)?;
            let mut key = mac(&secret, &[b"ropewalk data key\0", &number.to_be_bytes()])?;
            let derived = PKey::hmac(&key);
            key.fill(0);
            derived
        };
        Ok(Self { number, key: derive()? })
    }

    fn proof(&self, of: Side, transcript: [&[u8]; 3]) -> io::Result<[u8; PROOF]> {
        let [hello, nonce, binding] = transcript;
        Ok(mac(&self.key, &[of.label(), b"\0", hello, nonce, binding])?)
    }

    fn check(&self, of: Side, transcript: [&[u8]; 3], proof: &[u8]) -> io::Result<()> {
        let expected = self.proof(of, transcript)?;
        if proof.len() == PROOF && openssl::memcmp::eq(proof, &expected) {
            return Ok(());
        }
        Err(failed(ErrorKind::PermissionDenied, "the peer does not have the key of this data channel"))
    }
}

fn mac(key: &PKey<Private>, parts: &[&[u8]]) -> Result<[u8; PROOF], ErrorStack> {
    let mut signer = Signer::new(MessageDigest::sha256(), key)?;
    for part in parts {
        signer.update(part)?;
    }
    let mut out = [0; PROOF];
    signer.sign(&mut out)?;
    Ok(out)
}

impl Layer for KeyLayer {
    fn name(&self) -> &'static str {
        "key"
    }

    fn assurance(&self) -> Assurance {
        Assurance { bound: true, protected: false }
    }

    fn begin(&self, mut connection: Box<dyn Connection>, initiates: bool) -> io::Result<Box<dyn Handshake>> {
        connection.set_nonblocking(true)?;
        let mut handshake = KeyHandshake {
            binding: connection.channel_binding().map(Vec::from).unwrap_or_default(),
            connection: Some(connection),
            layer: self.clone(),
            awaits: Awaits::Hello,
            hello: [0; HELLO],
            nonce: [0; NONCE],
            out: Outgoing::default(),
            input: [0; ANSWER],
            had: 0,
        };
        if initiates {
            let hello = &mut handshake.hello;
            hello[..HEAD].copy_from_slice(&Side::Connects.head());
            hello[HEAD..HEAD + NUMBER].copy_from_slice(&self.number.to_be_bytes());
            openssl::rand::rand_bytes(&mut hello[HEAD + NUMBER..])?;
            handshake.out.bytes.extend_from_slice(hello);
            handshake.awaits = Awaits::Answer;
        }
        Ok(Box::new(handshake))
    }
}

#[derive(Clone, Copy)]
enum Side {
    Connects,
    Accepts,
}

impl Side {
    /// Different labels prevent that a side's own proof can be sent back to it as the peer's.
    fn label(self) -> &'static [u8] {
        match self {
            Self::Connects => b"connect",
            Self::Accepts => b"accept",
        }
    }

    fn head(self) -> [u8; HEAD] {
        let who = match self {
            Self::Connects => b'C',
            Self::Accepts => b'A',
        };
        let [a, b, c, d] = *MAGIC;
        [a, b, c, d, VERSION, who]
    }
}

#[derive(Clone, Copy)]
enum Awaits {
    /// The accepting side waits for the first message.
    Hello,
    /// The connecting side waits for the answer.
    Answer,
    /// The accepting side has answered and waits for the proof.
    Proof,
    Nothing,
}

impl Awaits {
    /// Length of the complete message in bytes.
    fn length(self) -> usize {
        match self {
            Self::Hello => HELLO,
            Self::Answer => ANSWER,
            Self::Proof => PROOF,
            Self::Nothing => 0,
        }
    }

    /// Whether the message can begin with these bytes.
    fn fits(self, begun: &[u8]) -> bool {
        let head = match self {
            Self::Hello => Side::Connects.head(),
            Self::Answer => Side::Accepts.head(),
            Self::Proof | Self::Nothing => return true,
        };
        begun.iter().zip(head).all(|(is, should)| *is == should)
    }
}

struct KeyHandshake {
    /// `None` after the connection was handed over.
    connection: Option<Box<dyn Connection>>,
    layer: KeyLayer,
    awaits: Awaits,
    /// The first message of the connecting side.
    hello: [u8; HELLO],
    /// The nonce of the accepting side.
    nonce: [u8; NONCE],
    /// Empty if the driver has none.
    binding: Vec<u8>,
    out: Outgoing,
    /// The received part of the current message. No byte beyond the message is read, because data
    /// may follow.
    input: [u8; ANSWER],
    had: usize,
}

impl KeyHandshake {
    /// Reads the expected message. Returns `false` if more of it must come. Input that cannot
    /// become such a message is refused at its first wrong byte.
    fn read(&mut self) -> io::Result<bool> {
        let connection = self.connection.as_mut().ok_or_else(over)?;
        let wanted = self.awaits.length();
        while self.had < wanted {
            match connection.read(&mut self.input[self.had..wanted]) {
                Ok(0) => {
                    let text = format!("the peer closed after {} of {wanted} bytes of its proof", self.had);
                    return Err(failed(ErrorKind::UnexpectedEof, &text));
                }
                Ok(n) => self.had += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            }
            let begun = &self.input[..self.had];
            if !self.awaits.fits(begun) {
                return Err(failed(ErrorKind::InvalidData, &what_came(begun)));
            }
        }
        Ok(true)
    }

    /// Processes the message that was received.
    fn take(&mut self) -> io::Result<()> {
        let message = &self.input[..self.had];
        match self.awaits {
            Awaits::Hello => {
                let (number, ours) = (&message[HEAD..HEAD + NUMBER], self.layer.number);
                if number != ours.to_be_bytes() {
                    let theirs = number.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
                    let text = format!("it is for the channel of key {theirs:016x}, not of {ours:016x}");
                    return Err(failed(ErrorKind::PermissionDenied, &text));
                }
                self.hello.copy_from_slice(message);
                openssl::rand::rand_bytes(&mut self.nonce)?;
                self.out.bytes.extend_from_slice(&Side::Accepts.head());
                self.out.bytes.extend_from_slice(&self.nonce);
                let transcript = [&self.hello[..], &self.nonce, &self.binding];
                self.out.bytes.extend_from_slice(&self.layer.proof(Side::Accepts, transcript)?);
                self.awaits = Awaits::Proof;
            }
            Awaits::Answer => {
                let (nonce, proof) = message[HEAD..].split_at(NONCE);
                let transcript = [&self.hello[..], nonce, &self.binding];
                self.layer.check(Side::Accepts, transcript, proof)?;
                self.out.bytes.extend_from_slice(&self.layer.proof(Side::Connects, transcript)?);
                self.awaits = Awaits::Nothing;
            }
            Awaits::Proof => {
                let transcript = [&self.hello[..], &self.nonce, &self.binding];
                self.layer.check(Side::Connects, transcript, message)?;
                self.awaits = Awaits::Nothing;
            }
            Awaits::Nothing => {}
        }
        self.had = 0;
        Ok(())
    }
}

impl Handshake for KeyHandshake {
    fn connection(&self) -> io::Result<&dyn Connection> {
        self.connection.as_deref().ok_or_else(over)
    }

    fn advance(&mut self) -> io::Result<Progress> {
        loop {
            let connection = self.connection.as_mut().ok_or_else(over)?;
            if !self.out.send(connection.as_mut())? {
                return Ok(Progress::Waits(Interest::Write));
            }
            if let Awaits::Nothing = self.awaits {
                return Ok(Progress::Done(self.connection.take().ok_or_else(over)?));
            }
            if !self.read()? {
                return Ok(Progress::Waits(Interest::Read));
            }
            self.take()?;
        }
    }
}

fn what_came(begun: &[u8]) -> String {
    if let (Some(MAGIC), Some(version)) = (begun.first_chunk(), begun.get(4))
        && *version != VERSION
    {
        return format!("the peer proves itself by version {version}, and only {VERSION} is known");
    }
    let first = begun.get(..HEAD).unwrap_or(begun);
    format!("the peer does not prove itself; it began with \"{}\"", first.escape_ascii())
}

fn failed(kind: ErrorKind, text: &str) -> io::Error {
    io::Error::new(kind, format!("binding of the data connection to its session: {text}"))
}
