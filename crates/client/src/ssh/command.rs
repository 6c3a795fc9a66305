//! The command line of ssh. No shell of this host interprets it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bstr::{BStr, ByteSlice};
use ropewalk_protocol::url::Url;

use crate::model::options::TerminalHold;
use crate::{Options, Terminal};

/// The command on the server's host: the scripts that GCT's client runs, or the Ropewalk server if
/// there are none. The user's shell there may be any, so /bin/sh gets the instructions.
const REMOTE: &str = concat!(
    "exec /bin/sh -c '",
    "for script in .globus/sshftp /etc/grid-security/sshftp; do ",
    r#"if test -f "$script"; then exec "$script"; fi; done; "#,
    "if command -v ropewalk >/dev/null 2>&1; then exec ropewalk serve --ssh; fi; ",
    r#"printf "500 sshftp is not set up on this host: there is no ~/.globus/sshftp, no /etc/grid-security/sshftp "#,
    r#"and no program ropewalk.\r\n"'"#,
);
/// The command that keeps a log-in open: it prints a line, and ends with its input.
const HOLD: &str = "echo ready; exec cat";
/// GCT's variable for another command.
const REMOTE_VARIABLE: &str = "GLOBUS_REMOTE_SSHFTP";

/// The arguments of one ssh.
pub(super) struct Words<'a> {
    url: &'a Url,
    options: &'a Options,
    user: Option<&'a OsStr>,
}

/// Whether a connection shares its log-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing<'a> {
    None,
    /// Others may share the log-in through this socket.
    Master(&'a Path),
    /// The socket of a master connection.
    With(&'a Path),
}

impl<'a> Words<'a> {
    /// Refuses values that ssh, or a program that it starts, would interpret as an option or as
    /// shell syntax.
    pub(super) fn new(url: &'a Url, options: &'a Options) -> Result<Self, String> {
        if url.password.is_some() {
            return Err(
                "sshftp:// takes no password: ssh asks for it, or takes a key from its agent".to_owned()
            );
        }
        if url.host.starts_with('-') {
            return Err(format!("{:?} is not a host name: it begins with '-'", url.host));
        }
        let user = url.user.as_deref().map(|user| user.as_bstr());
        let user = user.or_else(|| options.login.user.as_deref().map(|user| user.into()));
        user.map_or(Ok(()), check_user)?;
        Ok(Self { url, options, user: user.map(|user| OsStr::from_bytes(user)) })
    }

    fn program(&self) -> &OsStr {
        self.options.ssh.program.first().map_or(OsStr::new("ssh"), |program| program)
    }

    /// Whether the program is OpenSSH, whose options others may not know.
    pub(super) fn is_openssh(&self) -> bool {
        Path::new(self.program()).file_name() == Some(OsStr::new("ssh"))
    }

    /// Reserves the terminal if the program may ask there.
    pub(super) fn may_ask(&self) -> Option<TerminalHold> {
        let terminal = self.options.prompts.terminal.as_ref().filter(|_| self.options.ssh.interactive);
        terminal.map(Terminal::hold)
    }

    /// The user's arguments come first: of several values ssh uses the first.
    fn command(&self) -> Command {
        let mut command = Command::new(self.program());
        command.args(self.options.ssh.program.iter().skip(1));
        command
    }

    fn server(&self, command: &mut Command) {
        if self.url.port != 0 {
            command.arg("-p").arg(self.url.port.to_string());
        }
        if let Some(user) = self.user {
            command.arg("-l").arg(user);
        }
        if self.is_openssh() {
            command.arg("--");
        }
        command.arg(&self.url.host);
    }

    /// Prints ssh's configuration for the server, without connecting.
    pub(super) fn configuration(&self) -> Command {
        let mut command = self.command();
        command.arg("-G");
        self.server(&mut command);
        command
    }

    /// Starts a server, as GCT's client would do.
    pub(super) fn session(&self, sharing: Sharing<'_>) -> Command {
        let other = || std::env::var(REMOTE_VARIABLE).ok().filter(|text| !text.is_empty());
        let remote = self.options.ssh.remote_command.clone().or_else(other);
        self.remote(sharing, remote.as_deref().unwrap_or(REMOTE))
    }

    /// Opens a log-in for other connections.
    pub(super) fn holder(&self, sharing: Sharing<'_>) -> Command {
        self.remote(sharing, HOLD)
    }

    fn remote(&self, sharing: Sharing<'_>, remote: &str) -> Command {
        let mut command = self.command();
        let mut set = |option: &str, value: &OsStr| {
            let mut text = OsString::from(option);
            text.push("=");
            text.push(value);
            command.arg("-o").arg(text);
        };
        if self.is_openssh() {
            let seconds = |time: Duration| OsString::from(time.as_secs().max(1).to_string());
            // Disables forwarded ports, which only one session could have, and further commands.
            for (option, value) in
                [("ClearAllForwardings", "yes"), ("RemoteCommand", "none"), ("RequestTTY", "no")]
            {
                set(option, value.as_ref());
            }
            if !self.options.ssh.interactive {
                set("BatchMode", "yes".as_ref());
            }
            set("ConnectTimeout", &seconds(self.options.timeouts.connect));
            set("ServerAliveInterval", &seconds(self.options.timeouts.keepalive));
            let (role, path) = match sharing {
                Sharing::None => (None, None),
                Sharing::Master(path) => (Some("yes"), Some(path)),
                Sharing::With(path) => (Some("no"), Some(path)),
            };
            if let (Some(role), Some(path)) = (role, path) {
                set("ControlMaster", role.as_ref());
                set("ControlPath", path.as_os_str());
                set("ControlPersist", "no".as_ref());
            }
            // The server needs neither our agent nor our display.
            command.args(["-a", "-x"]);
        }
        self.server(&mut command);
        command.arg(remote);
        if !self.options.ssh.interactive {
            // Ctrl-C is for us: the server is then asked to stop, and ssh ends. An ssh that asks
            // questions must be in the terminal's process group.
            command.process_group(0);
        }
        command
    }
}

/// User names come from URLs, and reach the shell if ssh's configuration has a ProxyCommand or
/// Match exec with %r.
fn check_user(user: &BStr) -> Result<(), String> {
    let bad = |c: char| c.is_control() || c.is_whitespace() || "'`\"$;&<>|(){}".contains(c);
    let wrong = match user.to_str() {
        Ok("") => Some("is empty".to_owned()),
        Ok(text) if text.starts_with('-') => Some("begins with '-'".to_owned()),
        Ok(text) if text.ends_with('\\') => Some("ends with '\\'".to_owned()),
        Ok(text) => {
            text.find(bad).map(|at| format!("contains {:?}", text[at..].chars().next().unwrap_or(' ')))
        }
        Err(_) => Some("is not UTF-8".to_owned()),
    };
    wrong.map_or(Ok(()), |wrong| Err(format!("{user:?} is not a user name for ssh: it {wrong}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn words(url: &str, program: &[&str], sharing: Sharing<'_>) -> Result<Vec<String>, String> {
        let mut options = Options::default();
        options.ssh.program = program.iter().map(Into::into).collect();
        options.ssh.remote_command = Some("a 'command'; and more".to_owned());
        let url = Url::parse(url).unwrap();
        let command = Words::new(&url, &options)?.session(sharing);
        let all = [command.get_program()].into_iter().chain(command.get_args());
        Ok(all.map(|word| word.to_str().unwrap().to_owned()).collect())
    }

    #[test]
    fn one_argument_each() {
        let line = words("sshftp://ada@h:2222/x", &["/opt/ssh", "-F", "a b"], Sharing::None).unwrap();
        assert_eq!(line[..3], ["/opt/ssh", "-F", "a b"]);
        assert_eq!(line[line.len() - 7..], ["-p", "2222", "-l", "ada", "--", "h", "a 'command'; and more"]);
        assert!(line.contains(&"BatchMode=yes".to_owned()));
        let line = words("sshftp://[fe80::1%25lo]/x", &[], Sharing::With(Path::new("/s"))).unwrap();
        assert_eq!(line[0], "ssh");
        assert!(line.contains(&"ControlMaster=no".to_owned()) && line.contains(&"ControlPath=/s".to_owned()));
        assert_eq!(line[line.len() - 3..], ["--", "fe80::1%lo", "a 'command'; and more"]);
    }

    #[test]
    fn other_programs_get_what_all_know() {
        let line = words("sshftp://ada@h/x", &["plink"], Sharing::Master(Path::new("/s"))).unwrap();
        assert_eq!(line, ["plink", "-l", "ada", "h", "a 'command'; and more"]);
    }

    #[test]
    fn nothing_is_taken_for_an_option() {
        for url in [
            "sshftp://-oProxyCommand=x/",
            "sshftp://-h/",
            "sshftp://-l@h/",
            "sshftp://@h/",
            "sshftp://a%20b@h/",
            "sshftp://a%09b@h/",
            "sshftp://$(id)@h/",
            "sshftp://a;b@h/",
            "sshftp://a%60b@h/",
            "sshftp://a%5C@h/",
            "sshftp://%FF@h/",
            "sshftp://a:secret@h/",
        ] {
            let Ok(parsed) = Url::parse(url) else { continue };
            let refused = Words::new(&parsed, &Options::default()).err();
            assert!(refused.as_ref().is_some_and(|text| !text.contains("secret")), "{url}: {refused:?}");
        }
        assert!(words("sshftp://EXAMPLE%5Cada@h/", &[], Sharing::None).is_ok());
        assert!(words("sshftp://ada@example.org@h/", &[], Sharing::None).is_ok());
    }

    #[test]
    fn the_remote_side_finds_what_is_there() {
        let home = tempfile::tempdir().unwrap();
        let run = |with_script: bool| {
            if with_script {
                std::fs::create_dir(home.path().join(".globus")).unwrap();
                // Written by another process, so that no other test has it open for writing while
                // it runs.
                let write =
                    "printf '#!/bin/sh\\necho 220 there\\n' > .globus/sshftp && chmod +x .globus/sshftp";
                let written =
                    Command::new("sh").args(["-c", write]).current_dir(home.path()).status().unwrap();
                assert!(written.success());
            }
            let shell = Command::new("sh")
                .args(["-c", REMOTE])
                .current_dir(home.path())
                .env("PATH", "/usr/bin:/bin")
                .output()
                .unwrap();
            String::from_utf8(shell.stdout).unwrap()
        };
        let nothing = run(false);
        // On a host without these scripts and programs.
        if !Path::new("/etc/grid-security/sshftp").exists() && !Path::new("/usr/bin/ropewalk").exists() {
            assert!(
                nothing.starts_with("500 sshftp is not set up") && nothing.ends_with(".\r\n"),
                "{nothing}"
            );
        }
        assert_eq!(run(true), "220 there\n");
    }
}
