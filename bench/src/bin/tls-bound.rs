//! Measures TLS alone: the upper bound for a protected transfer over one stream.
//!
//! `tls-bound SOURCE DESTINATION`: one thread reads the file and writes it to OpenSSL, another
//! reads from OpenSSL and writes the destination, over TCP on loopback, with OpenSSL's own socket
//! I/O and nothing else: no FTP, no checksums. Then the same without the files. TLS 1.3 with
//! TLS_AES_256_GCM_SHA384, as between GridFTP programs. Prints MB/s.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use openssl::pkey::PKey;
use openssl::ssl::{Ssl, SslContext, SslMethod, SslStream, SslVerifyMode, SslVersion};
use openssl::x509::X509;

const CHUNK: usize = 256 << 10;

fn main() -> Result<()> {
    let usage = "usage: tls-bound SOURCE DESTINATION";
    let mut words = std::env::args().skip(1);
    let (source, destination) = (words.next().context(usage)?, words.next().context(usage)?);
    let size = std::fs::metadata(&source)?.len();
    for files in [true, false] {
        let (mut server, mut client) = pair()?;
        let reader = if files { Some(File::open(&source)?) } else { None };
        let writer = if files { Some(File::create(&destination)?) } else { None };
        let began = Instant::now();
        let sender = thread::spawn(move || send(&mut server, reader.as_ref(), size));
        receive(&mut client, writer.as_ref(), size)?;
        let seconds = began.elapsed().as_secs_f64();
        sender.join().map_err(|_| anyhow!("the sender panicked"))??;
        let what = if files { "file to file" } else { "memory to memory" };
        println!("{what}: {:.0}", size as f64 / seconds / 1e6);
    }
    std::fs::remove_file(destination)?;
    Ok(())
}

fn send(stream: &mut SslStream<TcpStream>, file: Option<&File>, size: u64) -> Result<()> {
    let mut buffer = vec![7; CHUNK];
    let mut at = 0;
    while at < size {
        let count = (size - at).min(CHUNK as u64) as usize;
        if let Some(file) = file {
            file.read_exact_at(&mut buffer[..count], at)?;
        }
        stream.write_all(&buffer[..count])?;
        at += count as u64;
    }
    Ok(())
}

fn receive(stream: &mut SslStream<TcpStream>, file: Option<&File>, size: u64) -> Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    while at < size {
        let count = (size - at).min(CHUNK as u64) as usize;
        stream.read_exact(&mut buffer[..count])?;
        if let Some(file) = file {
            file.write_all_at(&buffer[..count], at)?;
        }
        at += count as u64;
    }
    Ok(())
}

/// Returns both ends of a secured connection.
fn pair() -> Result<(SslStream<TcpStream>, SslStream<TcpStream>)> {
    let pem = ropewalk_tls::make(&["localhost".to_owned()])?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let far = listener.accept()?.0;
    let mut server = builder()?;
    server.set_certificate(&*X509::from_pem(&pem)?)?;
    server.set_private_key(&*PKey::private_key_from_pem(&pem)?)?;
    let mut server = SslStream::new(Ssl::new(&server.build())?, far)?;
    let mut client = SslStream::new(Ssl::new(&builder()?.build())?, near)?;
    let server = thread::spawn(move || server.accept().map(|()| server));
    client.connect()?;
    Ok((server.join().map_err(|_| anyhow!("the server panicked"))??, client))
}

fn builder() -> Result<openssl::ssl::SslContextBuilder> {
    let mut builder = SslContext::builder(SslMethod::tls())?;
    builder.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    builder.set_ciphersuites("TLS_AES_256_GCM_SHA384")?;
    builder.set_num_tickets(0)?;
    // Both ends are in this process.
    builder.set_verify(SslVerifyMode::NONE);
    Ok(builder)
}
