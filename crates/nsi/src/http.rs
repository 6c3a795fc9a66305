//! The part of HTTP/1.1 that the listener needs: one POST on each connection, bounded in size and
//! time.

use std::io::{self, Read, Write};
use std::time::Instant;

use crate::message::LONGEST;

/// The longest head of a request in bytes.
const LONGEST_HEAD: usize = 16 << 10;
const MOST_HEADERS: usize = 64;

/// Why a request is not answered with 200.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Status(u16, &'static str),
    /// The connection has failed, or the time is over.
    Lost,
}

/// Reads the body of a POST to this path.
///
/// # Errors
/// The request is another one, or too long, or does not end in time.
pub(crate) fn read_post(
    stream: &mut (impl Read + Write),
    path: &str,
    deadline: Instant,
) -> Result<Vec<u8>, Refused> {
    let mut bytes = Vec::new();
    let (head, length) = loop {
        if let Some(parsed) = parse_head(&bytes, path)? {
            break parsed;
        }
        if bytes.len() >= LONGEST_HEAD {
            return Err(Refused::Status(431, "Request Header Fields Too Large"));
        }
        more(stream, &mut bytes, deadline)?;
    };
    if head.expects_continue {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").map_err(|_| Refused::Lost)?;
    }
    let mut body = bytes.split_off(length);
    match head.body {
        Length::Known(length) if length > LONGEST => Err(Refused::Status(413, "Content Too Large")),
        Length::Known(length) => {
            while body.len() < length {
                more(stream, &mut body, deadline)?;
            }
            body.truncate(length);
            Ok(body)
        }
        Length::Chunked => chunks(stream, body, deadline),
    }
}

/// The answer to a request.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) reason: &'static str,
    /// The media type of the text.
    pub(crate) kind: &'static str,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn empty(status: u16, reason: &'static str) -> Self {
        Self { status, reason, kind: "text/plain", text: String::new() }
    }
}

/// Writes an answer, after which the connection ends.
///
/// # Errors
/// Those of the stream.
pub(crate) fn write_answer(stream: &mut impl Write, answer: &Answer) -> io::Result<()> {
    let Answer { status, reason, kind, text } = answer;
    let length = text.len();
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), text.as_bytes()].concat())?;
    stream.flush()
}

struct Head {
    body: Length,
    expects_continue: bool,
}

enum Length {
    Known(usize),
    Chunked,
}

/// The head and its length, if it is complete.
fn parse_head(bytes: &[u8], path: &str) -> Result<Option<(Head, usize)>, Refused> {
    const BAD: Refused = Refused::Status(400, "Bad Request");
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let Ok(httparse::Status::Complete(length)) = request.parse(bytes) else {
        let broken =
            httparse::Request::new(&mut [httparse::EMPTY_HEADER; MOST_HEADERS]).parse(bytes).is_err();
        return if broken { Err(BAD) } else { Ok(None) };
    };
    if request.path.and_then(|target| target.split('?').next()) != Some(path) {
        return Err(Refused::Status(404, "Not Found"));
    }
    if request.method != Some("POST") {
        return Err(Refused::Status(405, "Method Not Allowed"));
    }
    let header = |name: &str| {
        let mut found = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
        let value =
            found.next().map(|header| String::from_utf8_lossy(header.value).trim().to_ascii_lowercase());
        // Two lengths could mean two things.
        if found.next().is_some() { Err(BAD) } else { Ok(value) }
    };
    let expects_continue = header("expect")?.is_some_and(|value| value == "100-continue");
    let body = match (header("transfer-encoding")?, header("content-length")?) {
        (None, Some(length)) => Length::Known(length.parse().map_err(|_| BAD)?),
        (Some(coding), None) if coding == "chunked" => Length::Chunked,
        (None, None) => return Err(Refused::Status(411, "Length Required")),
        _ => return Err(BAD),
    };
    Ok(Some((Head { body, expects_continue }, length)))
}

fn chunks(stream: &mut impl Read, mut bytes: Vec<u8>, deadline: Instant) -> Result<Vec<u8>, Refused> {
    const BAD: Refused = Refused::Status(400, "Bad Request");
    let mut body = Vec::new();
    loop {
        let (at, size) = loop {
            match httparse::parse_chunk_size(&bytes) {
                Ok(httparse::Status::Complete(found)) => break found,
                Ok(httparse::Status::Partial) if bytes.len() < 1024 => more(stream, &mut bytes, deadline)?,
                _ => return Err(BAD),
            }
        };
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if size == 0 {
            return Ok(body);
        }
        if size > LONGEST - body.len().min(LONGEST) {
            return Err(Refused::Status(413, "Content Too Large"));
        }
        while bytes.len() < at + size + 2 {
            more(stream, &mut bytes, deadline)?;
        }
        body.extend_from_slice(&bytes[at..at + size]);
        bytes.drain(..at + size + 2);
    }
}

fn more(stream: &mut impl Read, bytes: &mut Vec<u8>, deadline: Instant) -> Result<(), Refused> {
    let mut some = [0; 16 << 10];
    loop {
        if Instant::now() >= deadline {
            return Err(Refused::Lost);
        }
        match stream.read(&mut some) {
            Ok(0) => return Err(Refused::Lost),
            Ok(read) => {
                bytes.extend_from_slice(&some[..read]);
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(Refused::Lost),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    /// A peer that sends one byte at a time.
    struct Peer<'a>(&'a [u8], Vec<u8>);

    impl Read for Peer<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let Some((first, rest)) = self.0.split_first() else { return Ok(0) };
            (buffer[0], self.0) = (*first, rest);
            Ok(1)
        }
    }

    impl Write for Peer<'_> {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            self.1.write(data)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn read(text: &str) -> Result<String, Refused> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let body = read_post(&mut Peer(text.as_bytes(), Vec::new()), "/cb", deadline)?;
        Ok(String::from_utf8(body).unwrap())
    }

    #[test]
    fn body_is_read_by_length_and_by_chunks() {
        assert_eq!(read("POST /cb HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"), Ok("hello".into()));
        let chunked =
            "POST /cb?x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n";
        assert_eq!(read(chunked), Ok("hello".into()));
    }

    #[test]
    fn other_requests_are_refused() {
        let status = |text: &str| match read(text) {
            Err(Refused::Status(status, _)) => status,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(status("GET /cb HTTP/1.1\r\nContent-Length: 0\r\n\r\n"), 405);
        assert_eq!(status("POST /other HTTP/1.1\r\nContent-Length: 0\r\n\r\n"), 404);
        assert_eq!(status("POST /cb HTTP/1.1\r\n\r\n"), 411);
        assert_eq!(status("POST /cb HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n"), 413);
        assert_eq!(status("POST /cb HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"), 400);
        assert_eq!(status("POST /cb HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n"), 413);
        assert_eq!(status("\u{1}\u{2}\r\n\r\n"), 400);
        assert_eq!(status(&format!("POST /cb HTTP/1.1\r\nX: {}", "x".repeat(20_000))), 431);
        assert_eq!(read("POST /cb HTTP/1.1\r\nContent-Length: 5\r\n\r\nhel"), Err(Refused::Lost));
    }
}
