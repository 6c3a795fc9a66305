//! The kernel's limits for the size of socket buffers (tcp(7), socket(7)). They are read from
//! /proc/sys/net. A limit that is hidden in a network namespace is measured with a socket instead.

use std::io;
use std::path::{Path, PathBuf};

use socket2::{Domain, Socket, Type};

/// Limits of the buffers of one direction, in bytes, with the values of the sysctls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferLimits {
    /// The size up to which autotuning grows a buffer: the third value of net.ipv4.tcp_rmem or
    /// tcp_wmem. It includes the kernel's own bookkeeping, so about half of it is left for data.
    pub autotune: u64,
    /// The largest size that SO_RCVBUF or SO_SNDBUF takes: net.core.rmem_max or wmem_max. The
    /// kernel doubles it for its bookkeeping.
    pub setsockopt: u64,
}

/// The limits of this host, or of the network namespace of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ceilings {
    pub send: BufferLimits,
    pub receive: BufferLimits,
}

/// Why a limit could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CeilingsError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} says {text:?}, expected {expected}")]
    Nonsense { path: PathBuf, text: String, expected: &'static str },
}

impl Ceilings {
    /// Reads the current values in /proc/sys/net.
    ///
    /// # Errors
    /// There is no /proc, or a file does not have the format of Linux.
    pub fn read() -> Result<Self, CeilingsError> {
        Self::read_from(Path::new("/proc/sys/net"))
    }

    /// Reads the values in `directory`, which has the layout of /proc/sys/net.
    ///
    /// # Errors
    /// A file does not exist, or does not contain the numbers.
    pub fn read_from(directory: &Path) -> Result<Self, CeilingsError> {
        let core = |name: &str| number(&directory.join("core").join(name), 0, "a number");
        let tcp = |name: &str| number(&directory.join("ipv4").join(name), 2, "three numbers");
        // The files of net.core do not exist in other network namespaces, such as those of
        // containers, but the limits apply there too. They are then measured with a socket.
        let core_or = |name, try_out: fn() -> io::Result<u64>| match core(name) {
            Err(CeilingsError::Read { path, source }) if source.kind() == io::ErrorKind::NotFound => {
                try_out().map_err(|source| CeilingsError::Read { path, source })
            }
            result => result,
        };
        Ok(Self {
            send: BufferLimits {
                autotune: tcp("tcp_wmem")?,
                setsockopt: core_or("wmem_max", largest_send_buffer)?,
            },
            receive: BufferLimits {
                autotune: tcp("tcp_rmem")?,
                setsockopt: core_or("rmem_max", largest_receive_buffer)?,
            },
        })
    }
}

/// More than any limit. The kernel cuts it to the limit and doubles that (socket(7)).
const TOO_MUCH: usize = 1 << 30;

fn largest_send_buffer() -> io::Result<u64> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_send_buffer_size(TOO_MUCH)?;
    Ok(socket.send_buffer_size()? as u64 / 2)
}

fn largest_receive_buffer() -> io::Result<u64> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_recv_buffer_size(TOO_MUCH)?;
    Ok(socket.recv_buffer_size()? as u64 / 2)
}

/// The smallest buffers that SO_SNDBUF and SO_RCVBUF make, in bytes as these options take them. No
/// sysctl has these values.
///
/// # Errors
/// A socket cannot be made.
pub fn least_buffers() -> io::Result<[u64; 2]> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_send_buffer_size(1)?;
    socket.set_recv_buffer_size(1)?;
    Ok([socket.send_buffer_size()?, socket.recv_buffer_size()?].map(|kernel| kernel as u64 / 2))
}

fn number(path: &Path, index: usize, expected: &'static str) -> Result<u64, CeilingsError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| CeilingsError::Read { path: path.to_owned(), source })?;
    let word = text.split_whitespace().nth(index).and_then(|word| word.parse().ok());
    word.ok_or_else(|| CeilingsError::Nonsense {
        path: path.to_owned(),
        text: text.trim().to_owned(),
        expected,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn read_matches_the_limits_of_this_host() {
        let ceilings = Ceilings::read().unwrap();
        for limits in [ceilings.send, ceilings.receive] {
            assert!(limits.autotune >= 4096 && limits.setsockopt >= 4096, "{limits:?}");
        }
        let least = least_buffers().unwrap();
        assert!(least.iter().all(|least| (64..4096).contains(least)), "{least:?}");
        assert_eq!(largest_send_buffer().unwrap(), ceilings.send.setsockopt);
        assert_eq!(largest_receive_buffer().unwrap(), ceilings.receive.setsockopt);
    }

    #[test]
    fn read_from_reports_missing_and_invalid_files() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let read = || Ceilings::read_from(directory.path());
        assert!(matches!(read(), Err(CeilingsError::Read { path, .. }) if path.ends_with("ipv4/tcp_wmem")));
        write("ipv4/tcp_wmem", "4096\t16384\t4194304\n");
        write("ipv4/tcp_rmem", "4096 131072\n");
        let error = read().unwrap_err().to_string();
        assert!(error.ends_with("ipv4/tcp_rmem says \"4096 131072\", expected three numbers"), "{error}");
        write("ipv4/tcp_rmem", "4096\t131072\t6291456\n");
        let hidden = read().unwrap();
        let tried_out = largest_send_buffer().unwrap();
        assert_eq!(hidden.send, BufferLimits { autotune: 4 << 20, setsockopt: tried_out });
        write("core/wmem_max", "212992\n");
        write("core/rmem_max", "many\n");
        assert!(matches!(read(), Err(CeilingsError::Nonsense { expected: "a number", .. })));
        write("core/rmem_max", "4194304\n");
        let now = read().unwrap();
        assert_eq!(now.send.setsockopt, 212_992);
        assert_eq!(now.receive, BufferLimits { autotune: 6 << 20, setsockopt: 4 << 20 });
    }
}
