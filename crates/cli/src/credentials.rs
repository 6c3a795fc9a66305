//! User names and passwords: from URLs, from a file, or from the user at the terminal.

use std::fs::File;
use std::io::{self, BufRead, IsTerminal, Read};
use std::path::Path;

use anyhow::Context;
use bstr::{BStr, BString, ByteSlice};
use parking_lot::Mutex;
use ropewalk_client::{
    Confirm, DataCredential, Location, Options, Pair, Passphrases, PasswordPrompt, RelayedLogin, TokenSource,
};
use ropewalk_gsi::{Credential, CredentialError, Source};
use ropewalk_protocol::command::Password;
use ropewalk_protocol::hop_login::ServerAddress;
use ropewalk_protocol::url::{Scheme, Url};
use zeroize::Zeroizing;

use crate::exit::usage;
use crate::output::{harmless, say, screen};
use crate::secret;
use crate::settings::PasswordFiles;

/// Longest accepted password line, in bytes.
const LONGEST: u64 = 4096;
/// OpenSSL accepts no shorter passphrases.
const SHORTEST: usize = 4;

/// The end of a copy that a location is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Source,
    Destination,
    /// The only location of a command that does not copy.
    Only,
}

/// The locations of copies.
pub fn sides<'a>(
    pairs: impl IntoIterator<Item = &'a mut Pair>,
) -> impl Iterator<Item = (Side, &'a mut Location)> {
    let both =
        |pair: &'a mut Pair| [(Side::Source, &mut pair.source), (Side::Destination, &mut pair.destination)];
    pairs.into_iter().flat_map(both)
}

/// A password from a file, and the user to whom it belongs.
struct Kept<'a> {
    password: Password,
    option: &'static str,
    /// `Only` applies to all servers that no other password file is for.
    side: Side,
    path: &'a Path,
    whose: Option<(Url, BString)>,
    /// Whether a URL has no user name, so that the password does not apply to it.
    nobody: bool,
}

impl<'a> Kept<'a> {
    fn all(files: &'a PasswordFiles) -> anyhow::Result<Vec<Self>> {
        let all = [
            (&files.source, "--source-password-file", Side::Source),
            (&files.destination, "--destination-password-file", Side::Destination),
            (&files.common, "--password-file", Side::Only),
        ];
        let named = all.into_iter().filter_map(|(path, option, side)| Some((path.as_deref()?, option, side)));
        named
            .map(|(path, option, side)| {
                let password = Password::new(read_password(path)?);
                Ok(Self { password, option, side, path, whose: None, nobody: false })
            })
            .collect()
    }

    fn is_for(&self, side: Side) -> bool {
        self.side == side || self.side == Side::Only
    }

    /// Returns the password for a user at a server. A password is sent to one server only: another
    /// one would learn it.
    fn give(&mut self, url: &Url, user: &BString) -> anyhow::Result<Password> {
        let (whose, known) = self.whose.get_or_insert_with(|| (url.clone(), user.clone()));
        if (&whose.host, whose.port) != (&url.host, url.port) || known != user {
            return Err(usage(format!(
                "{} {} would be sent for {known} to {} and for {user} to {}: name one for each with \
                 --source-password-file and --destination-password-file",
                self.option,
                self.path.display(),
                place(whose),
                place(url)
            )));
        }
        Ok(self.password.clone())
    }
}

fn place(url: &Url) -> String {
    if url.port == 0 { url.host.to_string() } else { format!("{}:{}", url.host, url.port) }
}

/// Completes the servers of `locations` from the password files, and so the log-ins at servers
/// behind relays (`hops`), which go into the options. If there is a user but no password, the user
/// is asked once the server is trusted. `from_command`: the locations stand on the command line,
/// where other users of the host can see them.
///
/// # Errors
/// A file cannot be read, or a password would be sent to a server that it is not for.
pub fn complete<'a>(
    options: &mut Options,
    files: &PasswordFiles,
    from_command: bool,
    locations: impl IntoIterator<Item = (Side, &'a mut Location)>,
    hops: Vec<(Side, RelayedLogin)>,
) -> anyhow::Result<()> {
    let mut kept = Kept::all(files)?;
    let locations: Vec<(Side, &mut Location)> = locations.into_iter().collect();
    let grid = |(_, location): &(Side, &mut Location)| matches!(location, Location::Remote(url) if url.scheme == Scheme::Gsiftp);
    if !options.login.insecure && locations.iter().any(grid) {
        options.login.passphrases = passphrases(options)?;
    }
    options.ssh.interactive = ssh_may_ask();
    options.prompts.terminal = Some(screen::terminal());
    if io::stdin().is_terminal() && io::stderr().is_terminal() {
        options.prompts.confirm = Some(Confirm::new(confirm));
    }
    if io::stdin().is_terminal() {
        options.prompts.password = Some(password_prompt());
    }
    let mut warned = !from_command;
    let mut warn = || {
        if !std::mem::replace(&mut warned, true) {
            say("ropewalk: warning: other users of this machine can see a password on the \
                 command line; use --password-file");
        }
    };
    // A file of an end is for the server where the files are, before the relay.
    for (side, mut hop) in hops {
        let RelayedLogin { server, .. } = &mut hop;
        match (&server.user, &server.password) {
            (_, Some(_)) => warn(),
            (Some(user), None) if !is_anonymous(user.as_bstr()) => {
                let user = user.clone();
                if let Some(kept) = kept.iter_mut().find(|kept| kept.is_for(side)) {
                    server.password = Some(kept.give(server, &user)?);
                }
            }
            _ => {}
        }
        add_hop(&mut options.login.hops, hop)?;
    }
    for (side, location) in locations {
        let Location::Remote(url) = location else { continue };
        if url.password.is_some() {
            warn();
            continue;
        }
        if url.scheme == Scheme::Sshftp {
            continue;
        }
        let user = url.user.clone().or_else(|| options.login.user.as_deref().map(BString::from));
        let Some(user) = user.filter(|user| !is_anonymous(user.as_bstr())) else {
            kept.iter_mut().filter(|kept| kept.is_for(side)).for_each(|kept| kept.nobody = true);
            continue;
        };
        if let Some(kept) = kept.iter_mut().find(|kept| kept.is_for(side)) {
            // A token takes precedence.
            if url.user.is_some() || options.login.token == TokenSource::None {
                url.password = Some(kept.give(url, &user)?);
                url.user = Some(user);
            }
        }
    }
    let of_nobody = |kept: &&Kept<'_>| files.in_command && kept.nobody && kept.whose.is_none();
    for Kept { option, path, .. } in kept.iter().filter(of_nobody) {
        say(format_args!(
            "ropewalk: warning: the password of {option} {} is not used: neither the URL nor --user \
             names a user with a password",
            path.display()
        ));
    }
    Ok(())
}

/// Adds log-ins that are complete.
///
/// # Errors
/// A relay has another log-in for a server.
pub(crate) fn add_hops(options: &mut Options, hops: Vec<(Side, RelayedLogin)>) -> anyhow::Result<()> {
    hops.into_iter().try_for_each(|(_, hop)| add_hop(&mut options.login.hops, hop))
}

/// A relay keeps one log-in for each server.
fn add_hop(hops: &mut Vec<RelayedLogin>, hop: RelayedLogin) -> anyhow::Result<()> {
    let place = |hop: &RelayedLogin| (hop.relay.clone(), ServerAddress::of(&hop.server));
    let log_in = |hop: &RelayedLogin| (hop.server.user.clone(), hop.server.password.clone());
    match hops.iter().find(|known| place(known) == place(&hop)) {
        Some(known) if log_in(known) != log_in(&hop) => {
            let (relay, server) = place(&hop);
            Err(usage(format!("{server} has two log-ins behind the relay {relay}: copy separately")))
        }
        Some(_) => Ok(()),
        None => {
            hops.push(hop);
            Ok(())
        }
    }
}

/// Asks at the terminal for a user's password at a server: once, for all sessions.
fn password_prompt() -> PasswordPrompt {
    type Answer = Result<Password, (io::ErrorKind, String)>;
    let asked: Mutex<Vec<(Url, BString, Answer)>> = Mutex::default();
    PasswordPrompt::new(move |url, user| {
        // The lock is held during the question, because other sessions need the same answer.
        let mut asked = asked.lock();
        let known = asked.iter().find(|(server, name, _)| same_server(server, url) && name == user);
        let answer = match known {
            Some((_, _, answer)) => answer.clone(),
            None => {
                let typed = secret::ask(&format!("Password of {} at {}: ", shown(user), url.host));
                let answer = match typed {
                    Ok(password) => Ok(Password::new(password.as_str())),
                    Err(error) => Err((error.kind(), error.to_string())),
                };
                asked.push((url.clone(), user.into(), answer.clone()));
                answer
            }
        };
        answer.map_err(|(kind, text)| io::Error::new(kind, text))
    })
}

fn shown(name: &BStr) -> String {
    harmless(&name.to_str_lossy())
}

/// Asks the user a yes-or-no question.
fn confirm(question: &str) -> bool {
    let _question = screen::question();
    if screen::is_in_background(io::stdin()) {
        say(format!("ropewalk: in the background, so this counts as no: {question}"));
        return false;
    }
    loop {
        eprint!("{question} (yes/no) ");
        let mut answer = String::new();
        match io::stdin().lock().take(LONGEST).read_line(&mut answer) {
            Ok(0) | Err(_) => return false,
            Ok(_) => {}
        }
        match answer.trim() {
            "yes" => return true,
            "no" => return false,
            _ => say("Please answer yes or no."),
        }
    }
}

/// Asks for the passphrases of all encrypted keys that log-ins will need before any session starts.
/// Other errors of a credential are reported when it is used.
fn passphrases(options: &Options) -> anyhow::Result<Passphrases> {
    let mut sources = options.credential_sources();
    if let DataCredential::File(path) = &options.data_security.credential {
        sources.push(Source::Proxy(path.clone()));
    }
    let mut known = Vec::new();
    for source in sources {
        match load(&source, &mut known) {
            Err(error @ CredentialError::Encrypted { .. }) => return Err(no_terminal(error)),
            Err(error @ CredentialError::Passphrase { .. }) => return Err(error.into()),
            _ => {}
        }
    }
    Ok(known.into_iter().collect())
}

/// Loads a credential. Its passphrase, if there is one, is asked for up to three times, and kept in
/// `known`.
pub(crate) fn load(
    source: &Source,
    known: &mut Vec<(String, Zeroizing<String>)>,
) -> Result<Credential, CredentialError> {
    let mut tries = 0;
    loop {
        let loaded = source.load(&mut |place| {
            let phrase = ask_passphrase(place)?;
            known.push((place.to_owned(), phrase.clone()));
            Some(phrase)
        });
        tries += 1;
        match loaded {
            Err(error @ CredentialError::Passphrase { .. }) if tries < 3 => {
                say(format_args!("ropewalk: {error}"));
            }
            loaded => return loaded,
        }
    }
}

/// The error for an encrypted key if there is no terminal.
pub(crate) fn no_terminal(error: CredentialError) -> anyhow::Error {
    anyhow::anyhow!(
        "{error}: there is no terminal to ask at, and passphrases are never taken from arguments or files (a proxy, which \
         `ropewalk proxy init` makes at a terminal, needs none)"
    )
}

/// Asks at the terminal, even if standard input is redirected. Returns `None` without a terminal.
pub(crate) fn ask_passphrase(place: &str) -> Option<Zeroizing<String>> {
    let phrase = secret::ask(&format!("Passphrase of {place}: ")).ok()?;
    (!phrase.is_empty()).then_some(phrase)
}

/// Asks twice for a new passphrase.
pub(crate) fn ask_new_passphrase(place: &str) -> anyhow::Result<Zeroizing<String>> {
    let ask = |words: &str| ask_passphrase(&format!("{place}{words}"));
    let Some(phrase) = ask("") else {
        anyhow::bail!("{place} needs a passphrase, and there is no terminal to ask at, or it was empty");
    };
    anyhow::ensure!(
        phrase.len() >= SHORTEST,
        "the passphrase has {} characters; at least {SHORTEST} are required",
        phrase.len()
    );
    anyhow::ensure!(ask(", again").as_ref() == Some(&phrase), "the passphrases differ");
    Ok(phrase)
}

/// Whether ssh can ask the user: it opens the terminal itself, whatever standard input is. In the
/// background the kernel would stop ssh and this program with it.
pub(crate) fn ssh_may_ask() -> bool {
    let asks = |terminal: File| !screen::is_in_background(&terminal);
    io::stderr().is_terminal() && File::open("/dev/tty").is_ok_and(asks)
}

fn is_anonymous(user: &BStr) -> bool {
    user == "anonymous" || user == "ftp"
}

/// Whether two URLs name the same server and user.
pub fn same_server(a: &Url, b: &Url) -> bool {
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
            "ropewalk: warning: other users can read the password file {}; use chmod 600",
            path.display()
        ));
    }
    Ok(())
}

fn first_line(mut input: impl Read) -> anyhow::Result<String> {
    // One allocation that never grows, so that zeroing it leaves no copies.
    let mut bytes = Zeroizing::new([0; LONGEST as usize]);
    let mut filled = 0;
    let line = loop {
        if let Some(end) = bytes[..filled].find_byte(b'\n') {
            break &bytes[..end];
        }
        if filled == bytes.len() {
            return Err(usage("the first line is too long for a password"));
        }
        match input.read(&mut bytes[filled..]) {
            Ok(0) => break &bytes[..filled],
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    };
    let password = std::str::from_utf8(line).map_err(|_| usage("the first line is not UTF-8"))?;
    let password = password.trim_end_matches('\r');
    if password.is_empty() {
        return Err(usage("the first line is empty"));
    }
    Ok(password.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(files: [Option<&str>; 3], source: &str, destination: &str) -> anyhow::Result<[String; 2]> {
        let directory = tempfile::tempdir()?;
        let write = |name: &str, text: Option<&str>| -> anyhow::Result<_> {
            let path = directory.path().join(name);
            let made = text.map(|text| std::fs::write(&path, text)).transpose()?;
            Ok(made.map(|()| path))
        };
        let [common, from, to] = files;
        let (common, from, to) = (write("common", common)?, write("from", from)?, write("to", to)?);
        let files = PasswordFiles { common, source: from, destination: to, in_command: true };
        let remote = |text: &str| Url::parse(text).map(Location::Remote);
        let mut pair = Pair { source: remote(source)?, destination: remote(destination)?, window: None };
        complete(&mut Options::default(), &files, true, sides([&mut pair]), Vec::new())?;
        let shown = |location: &Location| match location {
            Location::Remote(url) => url.to_string_with_password(),
            _ => String::new(),
        };
        Ok([shown(&pair.source), shown(&pair.destination)])
    }

    #[test]
    fn password_is_sent_to_one_user_at_one_server() {
        let common = [Some("secret"), None, None];
        for (source, destination) in [
            ("ftp://ada@a/f", "ftp://bob@b/f"),
            ("ftp://ada@a/f", "ftp://ada@b/f"),
            ("ftp://ada@a/f", "ftp://bob@a/f"),
            ("ftpes://ada@a:2811/f", "ftpes://ada@a:2812/f"),
        ] {
            let error = completed(common, source, destination).err().map(|error| error.to_string());
            let error = error.unwrap_or_default();
            assert!(error.contains("--source-password-file") && !error.contains("secret"), "{error}");
        }
        let given = |files, source, destination| completed(files, source, destination).ok();
        let expect = |source: &str, destination: &str| Some([source.to_owned(), destination.to_owned()]);
        assert_eq!(
            given(common, "ftp://ada@a/f", "ftp://ada@a/g"),
            expect("ftp://ada:secret@a/f", "ftp://ada:secret@a/g")
        );
        // Servers with a password of their own, and servers that need none.
        for other in ["ftp://bob:own@b/g", "ftp://b/g", "ftp://anonymous@b/g", "sshftp://bob@b/g"] {
            assert_eq!(given(common, "ftp://ada@a/f", other), expect("ftp://ada:secret@a/f", other));
        }
        let both = [None, Some("one"), Some("two")];
        assert_eq!(
            given(both, "ftp://ada@a/f", "ftp://ada@b/g"),
            expect("ftp://ada:one@a/f", "ftp://ada:two@b/g")
        );
        let one = [Some("rest"), Some("one"), None];
        assert_eq!(
            given(one, "ftp://ada@a/f", "ftp://bob@b/g"),
            expect("ftp://ada:one@a/f", "ftp://bob:rest@b/g")
        );
    }

    #[test]
    fn password_is_the_first_line_without_its_end() {
        assert_eq!(first_line(&b"secret \r\nmore"[..]).ok().as_deref(), Some("secret "));
        assert!(first_line(&b"\nsecret"[..]).is_err());
        assert!(first_line(&[b'x'; 5000][..]).is_err());
    }
}
