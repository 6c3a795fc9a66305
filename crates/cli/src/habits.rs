//! Hints for users of other programs: the equivalent Ropewalk option or URL.

use std::ffi::OsStr;
use std::fs;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::exit::usage;

/// Options of rsync, lftp, curl and scp, and our equivalents.
const OPTIONS: [(&str, &str); 6] = [
    ("--bwlimit", "--bandwidth"),
    ("--limit-rate", "--bandwidth"),
    ("--parallel", "--streams"),
    ("--resume-from", "--resume"),
    ("--rsh", "--ssh"),
    ("--checksums", "--checksum"),
];

/// Suggests our option for that of another program.
pub fn corrected(mut error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg)
        && let Some((_, ours)) = OPTIONS.iter().find(|(theirs, _)| given == theirs)
    {
        error.insert(ContextKind::SuggestedArg, ContextValue::String((*ours).to_owned()));
    }
    error
}

/// `sftp://...` and `user@host:path`, which Ropewalk does not support.
///
/// # Errors
/// The text is one of them; the error suggests a URL.
pub(crate) fn check_place(given: &OsStr) -> anyhow::Result<()> {
    let Some(text) = given.to_str() else { return Ok(()) };
    if let Some((scheme, rest)) = text.split_once("://") {
        let ssh = ["sftp", "scp", "ssh"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
        return match ssh {
            true => Err(usage(format!(
                "{text}: {scheme}:// is not supported; for a log-in with ssh use sshftp://{rest} \
                 (the server needs `ropewalk`, too)"
            ))),
            false => Ok(()),
        };
    }
    let Some((host, path)) = text.split_once(':') else { return Ok(()) };
    // A local file may have such a name.
    if host.contains('/') || !host.contains('@') || fs::symlink_metadata(given).is_ok() {
        return Ok(());
    }
    Err(usage(format!(
        "{text}: there is no such file; on a server it is {}, and a new local file is ./{text}",
        url(host, path)
    )))
}

/// The URL of `host:path`, whose path is relative to the home directory.
pub(crate) fn url(host: &str, path: &str) -> String {
    match path.strip_prefix('/') {
        Some(_) => format!("sshftp://{host}{path}"),
        None => format!("sshftp://{host}/~/{path}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn options_of_other_programs_are_recognised() {
        for (given, right) in [
            ("sftp://h/x", "sshftp://h/x"),
            ("SCP://ada@h/x", "sshftp://ada@h/x"),
            ("ada@h:/in/x", "sshftp://ada@h/in/x"),
        ] {
            let error = check_place(given.as_ref()).unwrap_err();
            assert!(error.to_string().contains(right), "{error}");
            assert_eq!(crate::exit::Exit::of_error(&error), crate::exit::Exit::Usage);
        }
        for fine in ["ftp://h/x", "a", "./ada@h:x", "12:30", "d/ada@h:x", "-", "file:/x"] {
            assert!(check_place(fine.as_ref()).is_ok(), "{fine}");
        }
    }
}
