//! A misbehaving server, with as much of FTP as a download needs.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use openssl::ssl::{Ssl, SslContext, SslMethod, SslStream};

use ropewalk_tests::certificates::Credential;

/// The misbehaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    None,
    /// AUTH is removed on the way.
    Stripped,
    /// A clear reply follows the reply to AUTH.
    Injected,
    /// The data connection ends without the end of TLS.
    CutOff,
    /// Data connections have another certificate.
    OtherData,
}

pub(crate) struct Liar {
    pub(crate) address: SocketAddr,
    thread: JoinHandle<Vec<String>>,
}

pub(crate) const CONTENT: &[u8] = b"some content";

impl Liar {
    /// Serves one session.
    pub(crate) fn start(lie: Lie, own: &Credential, other: &Credential) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (own, data) = (context(own), context(if lie == Lie::OtherData { other } else { own }));
        let thread = std::thread::spawn(move || {
            let mut heard = Vec::new();
            let (stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            // The client may close the connection at any time.
            let _ = serve(stream, lie, &own, &data, &mut heard);
            heard
        });
        Self { address, thread }
    }

    /// The received commands.
    pub(crate) fn heard(self) -> Vec<String> {
        self.thread.join().unwrap()
    }
}

fn context(credential: &Credential) -> SslContext {
    let mut builder = SslContext::builder(SslMethod::tls_server()).unwrap();
    // Accepts certificates with any signature.
    builder.set_security_level(0);
    builder.set_certificate(credential.certificate()).unwrap();
    builder.set_private_key(credential.key()).unwrap();
    builder.set_session_id_context(b"liar").unwrap();
    builder.build()
}

fn accept(context: &SslContext, stream: TcpStream) -> std::io::Result<SslStream<TcpStream>> {
    let mut stream = SslStream::new(Ssl::new(context)?, stream)?;
    stream.accept().map_err(std::io::Error::other)?;
    Ok(stream)
}

fn serve(
    stream: TcpStream,
    lie: Lie,
    own: &SslContext,
    data: &SslContext,
    heard: &mut Vec<String>,
) -> std::io::Result<()> {
    let mut clear = stream.try_clone()?;
    clear.write_all(b"220 ready.\r\n")?;
    let mut line = String::new();
    loop {
        line.clear();
        // Byte by byte, because TLS follows AUTH directly.
        let mut one = BufReader::with_capacity(1, &mut clear);
        if one.read_line(&mut line)? == 0 {
            return Ok(());
        }
        heard.push(line.trim_end().to_owned());
        match (line.trim_end(), lie) {
            ("AUTH TLS", Lie::Stripped) => clear.write_all(b"500 Unknown command.\r\n")?,
            ("AUTH TLS", Lie::Injected) => {
                clear.write_all(b"234 Go on.\r\n230 You are logged in.\r\n")?;
                break;
            }
            ("AUTH TLS", _) => {
                clear.write_all(b"234 Go on.\r\n")?;
                break;
            }
            _ => clear.write_all(b"530 Log in.\r\n")?,
        }
    }
    let mut control = BufReader::new(accept(own, stream)?);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    loop {
        line.clear();
        if control.read_line(&mut line)? == 0 {
            return Ok(());
        }
        heard.push(line.trim_end().to_owned());
        let (port, verb) =
            (listener.local_addr()?.port(), line.split_whitespace().next().unwrap_or_default());
        let mut say = |text: &str| control.get_mut().write_all(format!("{text}\r\n").as_bytes());
        match verb {
            "USER" => say("331 Password?")?,
            "PASS" => say("230 Welcome.")?,
            "PBSZ" | "PROT" | "TYPE" | "NOOP" => say("200 OK.")?,
            "FEAT" => say("211-Features:\r\n UTF8\r\n211 End.")?,
            "PASV" => say(&format!("227 Here (127,0,0,1,{},{})", port >> 8, port & 255))?,
            "RETR" => {
                say("150 Here it comes.")?;
                let (stream, _) = listener.accept()?;
                match accept(data, stream) {
                    Ok(mut stream) => {
                        // A client that rejects the certificate closes early.
                        let _ = stream.write_all(CONTENT);
                        if lie != Lie::CutOff {
                            let _ = stream.shutdown();
                        }
                        say("226 That was all.")?;
                    }
                    Err(_) => say("426 No.")?,
                }
            }
            "SIZE" => say(&format!("213 {}", CONTENT.len()))?,
            "LIST" | "MLST" | "MLSD" | "NLST" | "STAT" | "MDTM" => say("502 Nor that.")?,
            "PWD" => say("257 \"/\"")?,
            "QUIT" => return say("221 Bye."),
            _ => say("500 What?")?,
        }
    }
}

/// A peer that speaks no FTP, and only reads.
pub(crate) fn silent() -> (SocketAddr, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(b"220 ready.\r\n").unwrap();
        let mut heard = Vec::new();
        match stream.read_to_end(&mut heard) {
            Ok(_) => {}
            Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset),
        }
        heard
    });
    (address, thread)
}
