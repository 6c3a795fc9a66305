//! Questions at the terminal, and messages about servers that were accepted.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ropewalk_tests::peers;
use ropewalk_tests::process::run;
use ropewalk_tests::terminal::Terminal;

use crate::rogue_server::{CONTENT, Liar, Lie};
use crate::site::{LIMIT, Site, client};
use ropewalk_tests::certificates::{Made, self_signed};

fn copying(home: &Path, url: &str) -> Command {
    let mut command = client(home);
    command.args(["cp", "--quiet", "--retries", "0", url, "got"]);
    command
}

#[test]
fn trust_on_first_use() {
    if !peers::available(&["script"]) {
        return;
    }
    let site = Site::new();
    fs::write(site.path("root/a"), "content").unwrap();
    let home = tempfile::tempdir().unwrap();
    let known = home.path().join("state/ropewalk/known_hosts");
    let url = format!("{}/a", site.explicit_url());
    let name = format!("localhost:{}", site.address.port());
    let ask = || {
        let mut terminal = Terminal::start(&copying(home.path(), &url)).unwrap();
        terminal.wait_for(&format!("{name} is not known")).unwrap();
        terminal.wait_for(&format!("Its fingerprint is {}", site.fingerprint)).unwrap();
        terminal.wait_for("(yes/no) ").unwrap();
        terminal
    };
    // `y` and an empty line are no answers.
    let mut terminal = ask();
    for vague in ["y", ""] {
        terminal.enter(vague).unwrap();
        terminal.wait_for("Please answer yes or no.").unwrap();
        terminal.wait_for("(yes/no) ").unwrap();
    }
    terminal.enter("no").unwrap();
    let (status, text) = terminal.finish().unwrap();
    assert_eq!(status.code(), Some(3), "{text}");
    assert!(!known.exists() && !home.path().join("got").exists());
    assert!(!site.log().contains("logged in"));
    let mut terminal = ask();
    terminal.enter("yes").unwrap();
    let (status, text) = terminal.finish().unwrap();
    assert!(status.success(), "{text}");
    assert_eq!(fs::read(home.path().join("got")).unwrap(), b"content");
    assert_eq!(fs::read_to_string(&known).unwrap(), format!("{name} {}\n", site.fingerprint));
    // From now on no question is asked.
    let (status, text) = Terminal::start(&copying(home.path(), &url)).unwrap().finish().unwrap();
    assert!(status.success() && !text.contains("yes/no"), "{text}");
}

#[test]
fn passwords_are_asked_for_and_not_shown() {
    if !peers::available(&["script"]) {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let made = self_signed("localhost", Made::default());
    let liar = Liar::start(Lie::None, &made, &made);
    let url = format!("ftpes://ada@localhost:{}/a", liar.address.port());
    let mut command = client(home.path());
    command.args([
        "cp",
        "--quiet",
        "--retries",
        "0",
        "--accept-new",
        "--mode",
        "stream",
        "--checksum",
        "none",
    ]);
    command.args([&url, "got"]);
    let mut terminal = Terminal::start(&command).unwrap();
    terminal.wait_for("Password of ada at localhost: ").unwrap();
    terminal.enter("open sesame").unwrap();
    let (status, text) = terminal.finish().unwrap();
    assert!(status.success(), "{text}");
    assert!(!text.contains("sesame"), "{text}");
    assert_eq!(fs::read(home.path().join("got")).unwrap(), CONTENT);
    let heard = liar.heard();
    assert!(heard.iter().any(|line| line.trim_end() == "USER ada"), "{heard:?}");
    assert!(heard.iter().any(|line| line.trim_end() == "PASS open sesame"), "{heard:?}");
}

/// The progress line is not drawn over a question, and no password is asked for before the server
/// is trusted.
#[test]
fn a_first_visit_asks_for_the_fingerprint_then_for_the_password_and_draws_over_neither() {
    if !peers::available(&["script"]) {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let made = self_signed("localhost", Made::default());
    let liar = Liar::start(Lie::None, &made, &made);
    let url = format!("ftpes://ada@localhost:{}/a", liar.address.port());
    let mut command = client(home.path());
    command.env("TERM", "xterm").args(["cp", "--mode", "stream", "--checksum", "none", &url, "got"]);
    let mut terminal = Terminal::start(&command).unwrap();
    terminal.wait_for("(yes/no) ").unwrap();
    // The progress line would be drawn twice in this time.
    std::thread::sleep(Duration::from_millis(600));
    terminal.enter("yes").unwrap();
    terminal.wait_for("Password of ada at localhost: ").unwrap();
    std::thread::sleep(Duration::from_millis(600));
    terminal.enter("open sesame").unwrap();
    let (status, text) = terminal.finish().unwrap();
    assert!(status.success() && !text.contains("sesame"), "{text:?}");
    let asked = &text[text.find("is not known").unwrap()..];
    let asked = &asked[..asked.find("Password of ada at localhost: ").unwrap()];
    assert!(!asked.contains("\x1b[K"), "{asked:?}");
    let after = text.split("Password of ada at localhost: ").nth(1).unwrap();
    assert!(after.starts_with("\r\n"), "{after:?}");
}

/// After the cancellation the terminal echoes input again.
#[test]
fn a_password_question_that_is_broken_off_leaves_the_terminal_as_it_was() {
    if !peers::available(&["script"]) {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let made = self_signed("localhost", Made::default());
    let liar = Liar::start(Lie::None, &made, &made);
    let asking = client(home.path());
    let mut command = Command::new("sh");
    let url = format!("ftpes://ada@localhost:{}/", liar.address.port());
    command.args(["-c", "trap : INT; \"$0\" \"$@\"; stty -a"]);
    command.arg(asking.get_program()).args(asking.get_args()).args(["ls", "--accept-new", &url]);
    for (name, value) in asking.get_envs().filter_map(|(name, value)| Some((name, value?))) {
        command.env(name, value);
    }
    let mut terminal = Terminal::start(&command).unwrap();
    terminal.wait_for("Password of ada at localhost: ").unwrap();
    terminal.enter("sesa\x03").unwrap();
    let (_, text) = terminal.finish().unwrap();
    assert!(text.contains(" echo ") && text.contains(" icanon ") && !text.contains("sesa"), "{text}");
}

/// The command in the message has the promised effect.
#[test]
fn a_server_with_a_new_certificate_is_forgotten_and_accepted_anew() {
    let site = Site::new();
    fs::write(site.path("root/a"), "content").unwrap();
    let home = tempfile::tempdir().unwrap();
    let known = home.path().join("state/ropewalk/known_hosts");
    fs::create_dir_all(known.parent().unwrap()).unwrap();
    let name = format!("localhost:{}", site.address.port());
    let before = format!("SHA256{}", ":AB".repeat(32));
    fs::write(&known, format!("other.example:21 authority\n{name} {before}\n")).unwrap();
    let url = format!("{}/a", site.explicit_url());
    let copy = || run(copying(home.path(), &url).arg("--accept-new"), LIMIT).unwrap();
    let text = copy().failed().unwrap().errors();
    let told = format!("ropewalk known-hosts forget {name}");
    assert!(text.contains(&format!("`{told}`")), "{text}");
    let known_hosts =
        |words: &[&str]| run(client(home.path()).arg("known-hosts").args(words), LIMIT).unwrap();
    let listed = known_hosts(&["list"]).succeeded().unwrap().text();
    assert_eq!(listed, format!("other.example:21 authority\n{name} {before}\n"));
    let words: Vec<&str> = told.split(' ').skip(2).collect();
    let said = known_hosts(&words).succeeded().unwrap().errors();
    assert!(said.contains(&format!("{name} is forgotten")), "{said}");
    copy().succeeded().unwrap();
    let listed = known_hosts(&["list"]).succeeded().unwrap().text();
    assert_eq!(listed, format!("other.example:21 authority\n{name} {}\n", site.fingerprint));
    let unknown = known_hosts(&["forget", "nobody.example"]).failed().unwrap();
    assert_eq!(unknown.status.code(), Some(4));
    assert!(unknown.errors().contains("nobody.example is not known"));
    known_hosts(&["forget", "localhost", "other.example"]).succeeded().unwrap();
    assert_eq!(known_hosts(&["list"]).succeeded().unwrap().text(), "");
}
