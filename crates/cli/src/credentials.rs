//! User names and passwords: from URLs, a file, or the person at the terminal.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::path::Path;

use anyhow::Context;
use bstr::{BStr, BString, ByteSlice};
use ropewalk_client::{Location, Options};
use ropewalk_protocol::command::Password;
use ropewalk_protocol::url::Url;

use crate::exit::usage;
use crate::output::say;

/// Longer lines are no passwords.
const LONGEST: u64 = 4096;

/// Fills in what is missing for the servers of `locations`: from the file, or by asking where there is a user but no
/// password. `from_command`: the locations stand in the command, where others can see them.
pub(crate) fn complete<'a>(
    options: &mut Options,
    password_file: Option<&Path>,
    from_command: bool,
    locations: impl IntoIterator<Item = &'a mut Location>,
) -> anyhow::Result<()> {
    if let Some(path) = password_file {
        options.password = Some(read_password(path)?);
    }
    let mut warned = false;
    let mut asked: Vec<(Url, String)> = Vec::new();
    for location in locations {
        let Location::Remote(url) = location else { continue };
        if url.password.is_some() {
            if from_command && !warned {
                say(
                    "ropewalk: warning: other users of this machine can see a password that stands in a command; \
                     use --password-file",
                );
                warned = true;
            }
            continue;
        }
        let Some(user) = url.user.clone().or_else(|| options.user.as_deref().map(BString::from)) else {
            continue;
        };
        if options.password.is_some() || is_anonymous(user.as_bstr()) || !io::stdin().is_terminal() {
            continue;
        }
        let known =
            asked.iter().find(|(server, _)| same_server(server, url)).map(|(_, password)| password.clone());
        let password = match known {
            Some(password) => password,
            None => {
                let prompt = format!("Password of {user} at {}: ", url.host);
                let password = rpassword::prompt_password(prompt).context("cannot read the password")?;
                asked.push((url.clone(), password.clone()));
                password
            }
        };
        url.user = Some(user);
        url.password = Some(Password::new(password));
    }
    Ok(())
}

fn is_anonymous(user: &BStr) -> bool {
    user == "anonymous" || user == "ftp"
}

/// Whether two URLs name one server and one user there.
pub(crate) fn same_server(a: &Url, b: &Url) -> bool {
    a.scheme == b.scheme && a.host == b.host && a.port == b.port && a.user == b.user
}

fn read_password(path: &Path) -> anyhow::Result<String> {
    if path.as_os_str() == "-" {
        return first_line(io::stdin().lock()).context("cannot read the password from standard input");
    }
    let name = path.display();
    let file =
        File::open(path).map_err(|error| usage(format!("cannot open the password file {name}: {error}")))?;
    warn_of_readers(&file, path)?;
    first_line(file).with_context(|| format!("password file {name}"))
}

fn warn_of_readers(file: &File, path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let metadata = file.metadata().with_context(|| format!("password file {}", path.display()))?;
    if metadata.is_file() && metadata.mode() & 0o077 != 0 {
        say(format_args!(
            "ropewalk: warning: others may read the password file {}; use chmod 600",
            path.display()
        ));
    }
    Ok(())
}

fn first_line(input: impl Read) -> anyhow::Result<String> {
    let mut line = String::new();
    BufReader::new(input.take(LONGEST)).read_line(&mut line)?;
    let password = line.trim_end_matches(['\r', '\n']);
    if password.is_empty() {
        return Err(usage("the first line is empty"));
    }
    if line.len() as u64 == LONGEST {
        return Err(usage("the first line is too long for a password"));
    }
    Ok(password.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_without_its_end() {
        assert_eq!(first_line(&b"secret \r\nmore"[..]).ok().as_deref(), Some("secret "));
        assert!(first_line(&b"\nsecret"[..]).is_err());
        assert!(first_line(&[b'x'; 5000][..]).is_err());
    }
}
