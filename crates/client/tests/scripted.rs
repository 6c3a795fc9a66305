//! Commands of a session, and its reactions to replies: control connections that follow a script.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use common::*;
use parking_lot::Mutex;
use ropewalk_client::{
    Cancel, ChecksumPolicy, DataMode, Error, ErrorKind, Event, EventSink, FailureKind, Location, Options,
    Remote, StallLimit, no_events,
};
use ropewalk_protocol::url::Url;
use ropewalk_storage::checksum::Algorithm;

/// Greets, then sends each answer to a command, which has to start as the script says. Returns all
/// commands that it received. `None` as an answer leaves the command without a reply.
struct Script {
    url: Url,
    heard: JoinHandle<Vec<String>>,
}

impl Script {
    fn start(greeting: &'static str, steps: &'static [(&'static str, Option<&'static str>)]) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = match place(&format!("ftp://u:secret@{}/", listener.local_addr()?)) {
            Location::Remote(url) => url,
            other => anyhow::bail!("{other:?}"),
        };
        let heard = std::thread::spawn(move || {
            let mut heard = Vec::new();
            let Ok((stream, _)) = listener.accept() else { return heard };
            let Ok(mut out) = stream.try_clone() else { return heard };
            let mut lines = BufReader::new(stream).lines();
            let _ = out.write_all(greeting.as_bytes());
            for (expected, answer) in steps {
                let Some(Ok(line)) = lines.next() else { return heard };
                let answer =
                    if line.starts_with(expected) { *answer } else { Some("599 not in the script\r\n") };
                heard.push(line);
                let _ = answer.map(|answer| out.write_all(answer.as_bytes()));
            }
            // If an answer is left out, the connection stays open until the client closes it.
            if steps.iter().any(|(_, answer)| answer.is_none()) {
                heard.extend(lines.map_while(Result::ok));
            }
            heard
        });
        Ok(Self { url, heard })
    }

    fn heard(self) -> Vec<String> {
        self.heard.join().unwrap_or_default()
    }
}

fn failure(script: &Script, options: &Options) -> Error {
    match Remote::connect(&script.url, options) {
        Ok(_) => panic!("it should not have connected"),
        Err(error) => error,
    }
}

#[test]
fn logs_in_and_keeps_the_password_secret() -> Result<()> {
    let script = Script::start(
        "220-Welcome\r\n220 ready\r\n",
        &[
            ("USER u", Some("331 Password?\r\n")),
            ("PASS secret", Some("230-Hello\r\n230 in\r\n")),
            ("FEAT", Some("211-Features\r\n SIZE\r\n MLST Type*;\r\n211 End\r\n")),
            ("TYPE I", Some("200 ok\r\n")),
            ("MLST /x", Some("250-Listing\r\n Type=file;Size=7;Modify=20200101000000; /x\r\n250 End\r\n")),
            ("QUIT", Some("221 bye\r\n")),
        ],
    )?;
    let events = Arc::new(Mutex::new(Vec::new()));
    let log = events.clone();
    let tell: Arc<dyn EventSink> = Arc::new(move |event: Event| log.lock().push(format!("{event:?}")));
    let options = options().with(|o| o.trace_control = true);
    let mut remote = Remote::connect_with(&script.url, &options, &tell, &Cancel::new())?;
    ensure!(remote.banner() == "Welcome\nready", "{:?}", remote.banner());
    ensure!(remote.features() == ["SIZE", "MLST Type*;"], "{:?}", remote.features());
    let entry = remote.stat(b"/x")?;
    ensure!((entry.size, entry.modified) == (Some(7), Some(1_577_836_800)), "{entry:?}");
    remote.quit();
    ensure!(script.heard().last().is_some_and(|line| line == "QUIT"));
    let events = events.lock().join("\n");
    ensure!(events.contains("PASS ***") && !events.contains("secret"), "{events}");
    Ok(())
}

/// A plain FTP server until data is to move; then it sends `transfer`. The last one of `sizes` is
/// repeated.
fn stuck(sizes: &'static [&'static str], transfer: &'static str) -> Result<Location> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = place(&format!("ftp://u:secret@{}/f", listener.local_addr()?));
    let asked = Arc::new(AtomicUsize::new(0));
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let asked = asked.clone();
            std::thread::spawn(move || -> Result<()> {
                let mut out = client.try_clone()?;
                out.write_all(b"220 ready\r\n")?;
                for line in BufReader::new(client).lines() {
                    let line = line?;
                    let answer = match line.split(' ').next().unwrap_or_default() {
                        "USER" => "230 in\r\n",
                        "FEAT" => "211-Features\r\n SIZE\r\n MDTM\r\n211 End\r\n",
                        "SIZE" => sizes[asked.fetch_add(1, Ordering::Relaxed).min(sizes.len() - 1)],
                        "MDTM" => "213 20200101000000\r\n",
                        "PASV" => "227 Entering (127,0,0,1,4,1)\r\n",
                        "RETR" | "STOR" => transfer,
                        "MLST" | "MLSD" | "EPSV" | "SITE" | "OPTS" => "500 no\r\n",
                        _ => "200 ok\r\n",
                    };
                    out.write_all(answer.as_bytes())?;
                    if answer == ENDLESS {
                        loop {
                            out.write_all(answer.as_bytes())?;
                        }
                    }
                }
                Ok(())
            });
        }
    });
    Ok(url)
}

/// The reply that [`stuck`] repeats.
const ENDLESS: &str = "150 here it comes\r\n";

/// A server that sends replies without end is subject to the same limits as a silent one, and to
/// cancellation.
#[test]
fn servers_that_talk_without_end_are_broken_off() -> Result<()> {
    let second = Duration::from_secs(1);
    let stall = Some(StallLimit { bytes_per_second: 1, time: second });
    let options = options().with(|o| {
        o.timeouts.stall = stall;
        o.timeouts.reply = second;
        o.recovery.retries = 0;
        o.data.mode = DataMode::Stream;
    });
    let source = stuck(&["213 1000\r\n"], ENDLESS)?;
    let destination = stuck(&["550 none\r\n", "213 10\r\n", "213 20\r\n", "213 30\r\n"], ENDLESS)?;
    let told = run(source, destination, &options)?;
    let failure = told.summary.failures.first().map(|failure| failure.kind);
    ensure!(failure == Some(FailureKind::Stalled), "{:?}", told.summary);

    let Location::Remote(url) = stuck(&[ENDLESS], "")? else { anyhow::bail!("no URL") };
    let mut remote = Remote::connect(&url, &options)?;
    let Err(error) = remote.size(b"/f") else { anyhow::bail!("it has a size") };
    ensure!(error.kind() == ErrorKind::TimedOut, "{error}");

    let patient = options.with(|o| o.timeouts.reply = Duration::from_secs(600));
    let cancel = Cancel::new();
    let mut remote = Remote::connect_with(&url, &patient, &no_events(), &cancel)?;
    cancel.cancel();
    let Err(error) = remote.size(b"/f") else { anyhow::bail!("it has a size") };
    ensure!(error.kind() == ErrorKind::Cancelled, "{error}");
    Ok(())
}

/// Between two servers in MODE S there are no reports of progress.
#[test]
fn transfers_between_servers_that_stand_still_are_broken_off() -> Result<()> {
    let moving = "150 here it comes\r\n";
    let all = "150 here it comes\r\n226 all of it\r\n";
    let second = Duration::from_secs(1);
    let stall = Some(StallLimit { bytes_per_second: 1, time: second });
    let options = options().with(|o| {
        o.timeouts.stall = stall;
        o.timeouts.reply = second;
        o.recovery.retries = 0;
        o.data.mode = DataMode::Stream;
    });
    for (source, destination, reason) in [
        (
            stuck(&["213 1000\r\n"], moving)?,
            stuck(&["550 none\r\n", "213 10\r\n", "213 20\r\n", "213 30\r\n"], moving)?,
            FailureKind::Stalled,
        ),
        (stuck(&["213 1000\r\n"], moving)?, stuck(&["550 none\r\n"], all)?, FailureKind::Unreachable),
        // The source is done, but the destination has not received everything.
        (
            stuck(&["213 1000\r\n"], all)?,
            stuck(&["550 none\r\n", "213 10\r\n", "213 20\r\n"], moving)?,
            FailureKind::Stalled,
        ),
    ] {
        let told = run(source, destination, &options)?;
        let failure = told.summary.failures.first().map(|failure| failure.kind);
        ensure!(failure == Some(reason), "{:?}", told.summary);
    }
    Ok(())
}

/// A marker of a stripe that claims to have moved more bytes than any file has.
macro_rules! lie {
    ($stripe:literal) => {
        concat!(
            "112-Perf Marker\r\n Timestamp: 1.0\r\n Stripe Index: ",
            $stripe,
            "\r\n Stripe Bytes Transferred: 18446744073709551615\r\n Total Stripe Count: 2\r\n112 End\r\n"
        )
    };
}

#[test]
fn markers_of_more_than_there_is_are_not_believed() -> Result<()> {
    let source = stuck(&["213 100\r\n"], "150 go\r\n226 done\r\n")?;
    let lies = concat!("150 go\r\n", lie!(0), lie!(1), lie!(1), "226 done\r\n");
    let destination = stuck(&["550 no\r\n", "213 100\r\n"], lies)?;
    let options = options().with(|o| {
        o.integrity.checksum = ChecksumPolicy::None;
        o.data.mode = DataMode::Stream;
    });
    let told = run(source, destination, &options)?;
    ensure!((told.summary.files_done, told.summary.bytes) == (1, 100), "{:?}", told.summary);
    let most = told.events.iter().filter_map(|event| match event {
        Event::Progress { bytes, .. } => Some(*bytes),
        _ => None,
    });
    ensure!(most.max() == Some(100));
    Ok(())
}

#[test]
fn a_server_without_features() -> Result<()> {
    let script = Script::start(
        "220 ready\r\n",
        &[
            ("USER u", Some("230 no password needed\r\n")),
            ("FEAT", Some("500 what?\r\n")),
            ("TYPE I", Some("200 ok\r\n")),
            ("SIZE /d/f", Some("213 12\r\n")),
            ("MDTM /d/f", Some("213 20200101000000\r\n")),
            ("SIZE /d", Some("550 not a plain file\r\n")),
            ("PWD", Some("257 \"/home\" is here\r\n")),
            ("CWD /d", Some("250 ok\r\n")),
            ("CWD /home", Some("250 ok\r\n")),
        ],
    )?;
    let mut remote = Remote::connect(&script.url, &options())?;
    ensure!(remote.stat(b"/d/f")?.size == Some(12));
    ensure!(remote.stat(b"/d")?.is_directory());
    Ok(())
}

#[test]
fn what_is_no_checksum_is_not_told_as_one() -> Result<()> {
    for (answer, sum) in [
        ("213 \x1b[31mabc\r\n", None),
        ("213 not yet\r\n", None),
        ("213 \r\n", None),
        // The checksum lacks its leading zeros.
        ("213 3E3\r\n", Some("3e3")),
    ] {
        let steps = vec![
            ("USER u", Some("230 no password needed\r\n")),
            ("FEAT", Some("500 what?\r\n")),
            ("TYPE I", Some("200 ok\r\n")),
            ("CKSM MD5 0 -1 /f", Some(answer)),
        ];
        let script = Script::start("220 ready\r\n", steps.leak())?;
        let mut remote = Remote::connect(&script.url, &options())?;
        let told = remote.checksum(b"/f", Algorithm::Md5, None);
        match sum {
            Some(sum) => ensure!(told? == sum),
            None => ensure!(
                told.as_ref().is_err_and(|e| e.kind() == ErrorKind::Malformed),
                "{answer:?}: {told:?}"
            ),
        }
    }
    Ok(())
}

#[test]
fn refusals_are_told_apart() -> Result<()> {
    let script = Script::start("220 \r\n", &[("USER", Some("331 \r\n")), ("PASS", Some("530 No.\r\n"))])?;
    let error = failure(&script, &options());
    ensure!(
        error.kind() == ErrorKind::Authentication && error.to_string().contains("refused the log-in: "),
        "{error}"
    );
    ensure!(!error.is_transient() && error.to_string().contains("530 No."), "{error}");

    // No password was given, so the error must not say that it was wrong.
    let script = Script::start("220 \r\n", &[("USER", Some("331 \r\n")), ("PASS", Some("530 No.\r\n"))])?;
    let url = Url { user: Some("ada".into()), password: None, ..script.url.clone() };
    let Err(error) = Remote::connect(&url, &options()) else { bail!("it was let in") };
    let text = "refused the log-in of ada, for which no password was given";
    ensure!(error.to_string().contains(text), "{error}");
    ensure!(error.failure_kind() == FailureKind::Authentication && !error.is_transient());

    let script = Script::start("421 Too many, come back later.\r\n", &[])?;
    let error = failure(&script, &options());
    ensure!(error.is_transient() && error.to_string().contains("come back later"), "{error}");
    Ok(())
}

#[test]
fn servers_that_break_off_or_talk_nonsense() -> Result<()> {
    let script = Script::start("220 ready\r\n", &[("USER", Some("331-half of a re"))])?;
    let error = failure(&script, &options());
    let command = error.context().command.as_deref();
    ensure!(error.kind() == ErrorKind::Connection && command == Some("USER"), "{error}");
    ensure!(error.is_transient() && error.failure_kind() == FailureKind::Unreachable);

    let script = Script::start("220 ready\r\n", &[("USER", None)])?;
    // The timeout is long enough for the greeting on a busy host.
    let error = failure(&script, &options().with(|o| o.timeouts.reply = Duration::from_secs(2)));
    let command = error.context().command.as_deref();
    ensure!(error.kind() == ErrorKind::TimedOut && command == Some("USER"), "{error}");

    let flood = Box::leak("SSH-2.0-OpenSSH_9.2\r\n".repeat(10_000).into_boxed_str());
    let script = Script::start(flood, &[("", None)])?;
    let error = failure(&script, &options());
    ensure!(error.kind() == ErrorKind::Malformed, "{error}");
    Ok(())
}

#[test]
fn an_address_of_nowhere_is_no_address() -> Result<()> {
    let script = Script::start(
        "220 ready\r\n",
        &[
            ("USER", Some("230 in\r\n")),
            ("FEAT", Some("500 no\r\n")),
            ("TYPE", Some("200 ok\r\n")),
            ("PASV", Some("227 Entering Passive Mode (1,2,3)\r\n")),
        ],
    )?;
    let mut remote = Remote::connect(&script.url, &options())?;
    let Err(error) = remote.list(b"/") else { anyhow::bail!("it listed") };
    ensure!(error.kind() == ErrorKind::Malformed, "{error}");
    Ok(())
}

#[test]
fn a_name_cannot_smuggle_commands() -> Result<()> {
    let script = Script::start(
        "220 ready\r\n",
        &[
            ("USER", Some("230 in\r\n")),
            ("FEAT", Some("500 no\r\n")),
            ("TYPE", Some("200 ok\r\n")),
            ("", None),
        ],
    )?;
    let mut remote = Remote::connect(&script.url, &options())?;
    let Err(error) = remote.size(b"/x\r\nDELE /y") else { anyhow::bail!("it was sent") };
    ensure!(error.kind() == ErrorKind::Unsupported, "{error}");
    drop(remote);
    ensure!(script.heard().len() == 3);
    Ok(())
}

#[test]
fn stopping_ends_a_wait() -> Result<()> {
    let script = Script::start("220 ready\r\n", &[("USER", None)])?;
    let cancel = Cancel::new();
    let stop = cancel.clone();
    let tell: Arc<dyn EventSink> = Arc::new(move |event: Event| {
        if matches!(&event, Event::Dialogue { line, .. } if line.starts_with("USER")) {
            stop.cancel();
        }
    });
    let options = options().with(|o| {
        o.timeouts.reply = Duration::from_secs(60);
        o.trace_control = true;
    });
    let connected = Remote::connect_with(&script.url, &options, &tell, &cancel);
    let Err(error) = connected else { anyhow::bail!("it connected") };
    ensure!(error.kind() == ErrorKind::Cancelled, "{error}");
    Ok(())
}

/// A server that accepts files and reports nothing about them.
#[test]
fn what_a_server_does_not_tell_is_not_sent_again() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let to = place(&format!("ftp://u:secret@{}/f", listener.local_addr()?));
    let uploads = Arc::new(AtomicUsize::new(0));
    let count = uploads.clone();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let count = count.clone();
            std::thread::spawn(move || -> Result<()> {
                let (mut out, mut data) = (client.try_clone()?, None);
                out.write_all(b"220 ready\r\n")?;
                for line in BufReader::new(client).lines() {
                    let line = line?;
                    let answer = match line.split(' ').next().unwrap_or_default() {
                        "USER" => "230 in\r\n".to_owned(),
                        "FEAT" => "211-Features\r\n SIZE\r\n211 End\r\n".to_owned(),
                        "PASV" => {
                            let listener = TcpListener::bind("127.0.0.1:0")?;
                            let port = listener.local_addr()?.port();
                            data = Some(listener);
                            format!("227 Entering (127,0,0,1,{},{})\r\n", port / 256, port % 256)
                        }
                        "STOR" => {
                            count.fetch_add(1, Ordering::Relaxed);
                            out.write_all(b"150 send it\r\n")?;
                            if let Some(listener) = data.take() {
                                std::io::copy(&mut listener.accept()?.0, &mut std::io::sink())?;
                            }
                            "226 done\r\n".to_owned()
                        }
                        "PWD" => "257 \"/\"\r\n".to_owned(),
                        "RNFR" => "350 to what\r\n".to_owned(),
                        "SIZE" => "550 not for you\r\n".to_owned(),
                        "TYPE" | "RNTO" | "DELE" | "NOOP" | "ALLO" => "250 ok\r\n".to_owned(),
                        _ => "500 no\r\n".to_owned(),
                    };
                    out.write_all(answer.as_bytes())?;
                }
                Ok(())
            });
        }
    });
    let here = ropewalk_tests::scratch::Scratch::new()?;
    write(&here.join("f"), &[b'x'; 100_000])?;
    let told = run(Location::Local(here.join("f")), to, &options())?;
    ensure!(told.summary.files_failed == 1, "{:?}", told.summary);
    ensure!(uploads.load(Ordering::Relaxed) == 1, "{uploads:?}: {:?}", told.summary);
    Ok(())
}
