//! The side of `ropewalk admin`.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::message::{Answer, Line, Request, SCHEMA};

/// The server answers within this time, or does not answer at all.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest line, in bytes: a path of 4 KiB, escaped, has 24.
const LONGEST: u64 = 64 << 10;

/// The server did not do what the administrator wants.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    #[error("no server answers at {path}: {source}")]
    Connect { path: PathBuf, source: io::Error },
    #[error("the connection to the server failed: {0}")]
    Connection(#[from] io::Error),
    #[error("the server's answer is not understood: {0}")]
    Answer(String),
    /// The server's reason.
    #[error("{0}")]
    Refused(String),
}

/// Sends a request to the server with this admin socket. Each line of the answer goes to `take`.
///
/// # Errors
/// No server answers there, or it refuses.
pub fn ask<E: From<AdminError>>(
    socket: &Path,
    request: &Request,
    mut take: impl FnMut(Line) -> Result<(), E>,
) -> Result<(), E> {
    let mut lines = send(socket, request)?;
    loop {
        let line = next(&mut lines)?;
        match line.answer {
            Answer::Done => return Ok(()),
            Answer::Refused { reason } => return Err(AdminError::Refused(reason).into()),
            _ => take(line)?,
        }
    }
}

fn send(socket: &Path, request: &Request) -> Result<BufReader<UnixStream>, AdminError> {
    let connect = |source| AdminError::Connect { path: socket.to_owned(), source };
    let mut stream = UnixStream::connect(socket).map_err(connect)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut text = serde_json::to_vec(request).map_err(io::Error::from)?;
    text.push(b'\n');
    // A server that refuses this user does not read; its answer says why.
    match stream.write_all(&text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error.into()),
        _ => {}
    }
    Ok(BufReader::new(stream))
}

fn next(lines: &mut BufReader<UnixStream>) -> Result<Line, AdminError> {
    let mut text = Vec::new();
    lines.take(LONGEST).read_until(b'\n', &mut text)?;
    if text.pop() != Some(b'\n') {
        return Err(AdminError::Answer("it ends in the middle".into()));
    }
    let line: Line = serde_json::from_slice(&text).map_err(|error| AdminError::Answer(error.to_string()))?;
    if line.schema != SCHEMA {
        return Err(AdminError::Answer(format!("its schema is {}, not {SCHEMA}", line.schema)));
    }
    Ok(line)
}
