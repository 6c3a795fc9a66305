//! Classifies failures that other programs describe in words only: ssh and the system's resolver.

use std::io;

use crate::FailureKind;

/// Why there is no session if ssh itself reports no error.
pub(crate) const NO_GREETING: &str = "the program on the server ended without a greeting: it is not \
                                      an FTP server";

/// The kind of failure that ssh's words report.
pub(super) fn ssh_kind(reason: &str) -> FailureKind {
    let refusals = ["Permission denied", "Host key verification failed", "Too many authentication failures"];
    if refusals.iter().any(|words| reason.contains(words)) {
        FailureKind::Authentication
    } else {
        FailureKind::Unreachable
    }
}

/// Whether a retry may succeed.
pub(super) fn ssh_is_transient(reason: &str) -> bool {
    let lasting = [
        "Could not resolve hostname",
        "Bad configuration",
        "Bad owner",
        "cannot be started",
        "is not set up",
        NO_GREETING,
        "Permission denied",
        // A shell that has not found, or cannot run, the command.
        "ended with code 126",
        "ended with code 127",
        "not found",
        "No such file",
    ];
    ssh_kind(reason) == FailureKind::Unreachable && !lasting.iter().any(|words| reason.contains(words))
}

/// Whether the resolver failed temporarily (`EAI_AGAIN`, of which the standard library has only the
/// C library's text). A name that does not exist is another error.
pub(super) fn may_be_found_later(error: &io::Error) -> bool {
    const TEXTS: [&str; 2] = ["Temporary failure in name resolution", "Try again"];
    error.kind() == io::ErrorKind::TimedOut || TEXTS.iter().any(|text| error.to_string().contains(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_ssh() {
        for (words, is, again) in [
            ("ada@h: Permission denied (publickey).", FailureKind::Authentication, false),
            ("Host key verification failed.", FailureKind::Authentication, false),
            ("ssh: connect to host h port 22: Connection refused", FailureKind::Unreachable, true),
            ("ssh: Could not resolve hostname h: Name or service not known", FailureKind::Unreachable, false),
            ("Connection closed by 192.0.2.1 port 22", FailureKind::Unreachable, true),
            ("sh: 1: ropewalk: not found", FailureKind::Unreachable, false),
        ] {
            assert_eq!((ssh_kind(words), ssh_is_transient(words)), (is, again), "{words}");
        }
    }
}
