//! Replies to failed operations, with GCT's texts.

use std::fmt;

use super::action::{Failure, StackKind};
use crate::error_class::{ErrorClass, chain_lines, class_lines, of_errno, system_lines};
use crate::path::VirtualPath;
use crate::reply::Reply;

/// The kind of an attempted operation, as far as the reply depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Attempt<'a> {
    Login,
    /// PORT, EPRT, SPOR.
    Connect,
    /// A transfer or listing over the data channel.
    Transfer(&'a VirtualPath),
    ChangeDirectory(&'a VirtualPath),
    /// RNFR, SITE SYMLINKFROM: the code is 500 for all errors.
    Source,
    DeleteTree,
    Truncate,
    Checksum(&'a VirtualPath),
    Other,
}

/// A reply with the lines of `text`, and `End.` if there are several.
fn text_reply(code: u16, text: &str) -> Reply {
    let mut lines: Vec<&str> = text.lines().collect();
    if lines.len() > 1 {
        lines.push("End.");
    }
    Reply::coded(code, lines)
}

fn class_reply<T: AsRef<str>>(code: u16, class: ErrorClass, details: &[T]) -> Reply {
    Reply::coded(code, class_lines(class, details))
}

/// Inserts `prefix` before the first line.
fn prefixed(prefix: &str, mut lines: Vec<String>) -> Vec<String> {
    lines[0].insert_str(0, prefix);
    lines
}

/// Returns `code` if it is a failure code, otherwise 500.
fn failure_code(code: u16) -> u16 {
    if (400..600).contains(&code) { code } else { 500 }
}

impl Failure {
    /// GCT's refusal of a driver stack, for this reason.
    pub fn bad_stack(kind: StackKind, reason: impl fmt::Display) -> Self {
        let kind = match kind {
            StackKind::DataChannel => "data channel",
            StackKind::FileSystem => "filesystem",
        };
        let text = format!("Setting {kind} driver stack failed.\nglobus_xio: Bad parameter, {reason}");
        Self::Refused { code: 500, text }
    }
}

impl Attempt<'_> {
    /// The reply to a failure of this attempt.
    pub(super) fn reply(self, failure: Failure) -> Reply {
        match failure {
            Failure::System { errno, action } => self.system(errno, &action),
            Failure::Class { class, lines } => class_reply(class.code(), class, &lines),
            Failure::NotAllowed => match self {
                Self::Login => Reply::new(530, "Login incorrect. : Access denied by configuration."),
                Self::Connect => Reply::new(501, "Illegal PORT command."),
                Self::Transfer(_) => Reply::new(500, "Command failed : Path not allowed."),
                Self::ChangeDirectory(path) => {
                    Reply::new(550, format!("{path}: Could not change directory. : Path not allowed."))
                }
                _ => Reply::new(500, "Path not allowed."),
            },
            Failure::LoginDenied(reason) => text_reply(530, &format!("Login incorrect. : {reason}")),
            Failure::DataConnection(text) => {
                class_reply(425, ErrorClass::DataChannelCommunicationFailure, &reasons(&text))
            }
            Failure::DataBroken(text) => {
                class_reply(426, ErrorClass::DataChannelCommunicationFailure, &reasons(&text))
            }
            Failure::NoDataChannel(text) if text.is_empty() => Reply::new(500, "Command failed"),
            Failure::NoDataChannel(text) => text_reply(500, &format!("Command failed. : {text}")),
            Failure::ChecksumMismatch { computed, expected } => {
                let details = [
                    format!("GridFTP-Computed-Checksum: {computed}"),
                    format!("GridFTP-Expected-Checksum: {expected}"),
                ];
                class_reply(ErrorClass::IncorrectChecksum.code(), ErrorClass::IncorrectChecksum, &details)
            }
            Failure::Refused { code, text } => text_reply(failure_code(code), &text),
            Failure::Aborted => aborted(),
            // If the log-in fails for this reason, the session ends.
            Failure::Busy(text) if matches!(self, Self::Login) => text_reply(421, &text),
            Failure::Busy(text) => text_reply(451, &text),
        }
    }

    fn system(self, errno: i32, action: &str) -> Reply {
        let code = of_errno(errno).0;
        match self {
            Self::Transfer(path) if action == "open" => {
                let [open, call, end] = chain_lines(errno, action);
                let lines = [
                    "Command failed. : globus_l_gfs_file_open failed.".to_owned(),
                    format!("globus_xio: Unable to open file {path}"),
                    open,
                    call,
                    end,
                ];
                Reply::coded(500, lines)
            }
            Self::Checksum(path) if action == "open" => {
                let [open, call, end] = chain_lines(errno, action);
                let lines = [
                    "globus_xio_register_open failed.".to_owned(),
                    format!("globus_xio: Unable to open file {path}"),
                    open,
                    call,
                    end,
                ];
                Reply::coded(500, lines)
            }
            Self::Checksum(_) => {
                let first = "checksum read callback failed.".to_owned();
                Reply::coded(500, [first].into_iter().chain(chain_lines(errno, action)))
            }
            Self::Truncate if action == "open" => Reply::coded(500, chain_lines(errno, action)),
            Self::ChangeDirectory(path) if of_errno(errno).1 == ErrorClass::NotADirectory => {
                Reply::new(550, format!("{path}: Not a directory."))
            }
            Self::ChangeDirectory(path) => {
                let prefix = format!("{path}: Could not change directory. : ");
                Reply::coded(550, prefixed(&prefix, system_lines(errno, action)))
            }
            Self::Source => Reply::coded(500, system_lines(errno, action)),
            Self::DeleteTree => {
                let first = "recursion failed.".to_owned();
                Reply::coded(500, [first].into_iter().chain(system_lines(errno, action)))
            }
            _ => Reply::coded(code, system_lines(errno, action)),
        }
    }
}

fn reasons(text: &str) -> Vec<String> {
    text.lines().map(|line| format!("GridFTP-Reason: {line}")).collect()
}

/// The reply to a command that was aborted by ABOR.
pub(super) fn aborted() -> Reply {
    Reply::new(426, "Command Aborted.")
}

/// The reply if the host reported the outcome of another kind of operation.
pub(super) fn wrong_outcome() -> Reply {
    class_reply(451, ErrorClass::InternalError, &["GridFTP-Reason: unexpected outcome of the operation"])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(attempt: Attempt<'_>, failure: Failure) -> String {
        attempt.reply(failure).to_string()
    }

    fn system(errno: i32, action: &str) -> Failure {
        Failure::System { errno, action: action.to_owned() }
    }

    fn not_found(code: u16) -> String {
        format!(
            "GlobusError: v=1 c=PATH_NOT_FOUND|{code}-GridFTP-Errno: 2|{code}-GridFTP-Reason: System error in stat|\
             {code}-GridFTP-Error-String: No such file or directory|{code} End."
        )
    }

    #[test]
    fn failed_system_call_is_answered_as_gct_does() {
        let path = VirtualPath::parse(b"/nope").unwrap_or_else(|_| VirtualPath::root());
        let chain = "500-globus_xio: System error in open: No such file or directory|\
                     500-globus_xio: A system call failed: No such file or directory|500 End.";
        assert_eq!(text(Attempt::Other, system(2, "stat")), format!("550-{}", not_found(550)));
        assert_eq!(text(Attempt::Source, system(2, "stat")), format!("500-{}", not_found(500)));
        assert_eq!(
            text(Attempt::DeleteTree, system(2, "stat")),
            format!("500-recursion failed.|500-{}", not_found(500))
        );
        assert_eq!(
            text(Attempt::ChangeDirectory(&path), system(2, "stat")),
            format!("550-/nope: Could not change directory. : {}", not_found(550))
        );
        assert_eq!(text(Attempt::ChangeDirectory(&path), system(20, "stat")), "550 /nope: Not a directory.");
        assert_eq!(
            text(Attempt::Transfer(&path), system(2, "open")),
            format!(
                "500-Command failed. : globus_l_gfs_file_open failed.|500-globus_xio: Unable to open file /nope|{chain}"
            )
        );
        assert_eq!(
            text(Attempt::Checksum(&path), system(2, "open")),
            format!("500-globus_xio_register_open failed.|500-globus_xio: Unable to open file /nope|{chain}")
        );
        assert_eq!(text(Attempt::Truncate, system(2, "open")), chain);
        assert_eq!(
            text(Attempt::Checksum(&path), system(21, "read")),
            "500-checksum read callback failed.|500-globus_xio: System error in read: Is a directory|\
             500-globus_xio: A system call failed: Is a directory|500 End."
        );
        assert!(
            text(Attempt::Transfer(&path), system(28, "write"))
                .starts_with("552-GlobusError: v=1 c=NO_SPACE_LEFT|")
        );
    }

    #[test]
    fn other_failure_is_answered_as_gct_does() {
        let path = VirtualPath::root();
        let transfer = Attempt::Transfer(&path);
        let all = [
            (transfer, Failure::NotAllowed, "500 Command failed : Path not allowed."),
            (Attempt::Other, Failure::NotAllowed, "500 Path not allowed."),
            (
                Attempt::ChangeDirectory(&path),
                Failure::NotAllowed,
                "550 /: Could not change directory. : Path not allowed.",
            ),
            (Attempt::Connect, Failure::NotAllowed, "501 Illegal PORT command."),
            (
                Attempt::Login,
                Failure::LoginDenied("Invalid user.".to_owned()),
                "530 Login incorrect. : Invalid user.",
            ),
            (
                Attempt::Login,
                Failure::LoginDenied("a\nb".to_owned()),
                "530-Login incorrect. : a|530-b|530 End.",
            ),
            (Attempt::Login, Failure::Busy("x".to_owned()), "421 x"),
            (transfer, Failure::Busy("x".to_owned()), "451 x"),
            (transfer, Failure::NoDataChannel(String::new()), "500 Command failed"),
            (transfer, Failure::NoDataChannel("why".to_owned()), "500 Command failed. : why"),
            (transfer, Failure::Aborted, "426 Command Aborted."),
            (transfer, Failure::Refused { code: 552, text: "no".to_owned() }, "552 no"),
            (transfer, Failure::Refused { code: 200, text: "no".to_owned() }, "500 no"),
            (
                transfer,
                Failure::ChecksumMismatch { computed: "1".to_owned(), expected: "2".to_owned() },
                "550-GlobusError: v=1 c=INCORRECT_CHECKSUM|550-GridFTP-Computed-Checksum: 1|\
                 550-GridFTP-Expected-Checksum: 2|550 End.",
            ),
            (
                transfer,
                Failure::DataConnection("refused".to_owned()),
                "425-GlobusError: v=1 c=DATA_CHANNEL_COMMUNICATION_FAILURE|425-GridFTP-Reason: refused|425 End.",
            ),
            (
                transfer,
                Failure::DataBroken("reset".to_owned()),
                "426-GlobusError: v=1 c=DATA_CHANNEL_COMMUNICATION_FAILURE|426-GridFTP-Reason: reset|426 End.",
            ),
            (
                transfer,
                Failure::Class {
                    class: ErrorClass::QuotaExceeded,
                    lines: vec!["GridFTP-Reason: full".to_owned()],
                },
                "451-GlobusError: v=1 c=QUOTA_EXCEEDED|451-GridFTP-Reason: full|451 End.",
            ),
        ];
        for (attempt, failure, expected) in all {
            assert_eq!(text(attempt, failure), expected);
        }
    }
}
