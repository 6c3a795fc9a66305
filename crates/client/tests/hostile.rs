//! Malicious servers, and servers that end sessions at any time.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use common::*;
use ropewalk_client::{Auto, Location, Preserve, Summary};
use ropewalk_tests::scratch::Scratch;

/// The content of the server's directories, as MLSD lists it.
type Listings = &'static [(&'static str, &'static [&'static str])];

/// A server with these directories; every file has one byte.
fn server(listings: Listings) -> Result<Location> {
    impatient(listings, "")
}

/// Like [`server`], but the session that first lists this directory is ended.
fn impatient(listings: Listings, ends: &'static str) -> Result<Location> {
    let ended = Arc::new(AtomicBool::new(ends.is_empty()));
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = place(&format!("ftp://u:secret@{}/d/", listener.local_addr()?));
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let ended = ended.clone();
            let ends = move |path: &str| path == ends && !ended.swap(true, Ordering::Relaxed);
            std::thread::spawn(move || serve(client, listings, &ends));
        }
    });
    Ok(url)
}

fn serve(client: TcpStream, listings: Listings, ends: &dyn Fn(&str) -> bool) -> Result<()> {
    let mut out = client.try_clone()?;
    let mut data: Option<TcpListener> = None;
    out.write_all(b"220 ready\r\n")?;
    for line in BufReader::new(client).lines() {
        let line = line?;
        let (verb, path) = line.split_once(' ').unwrap_or((&line, ""));
        let listing = listings.iter().find(|(name, _)| *name == path.trim_end_matches('/'));
        let answer = match verb {
            "USER" => "230 in".to_owned(),
            "FEAT" => "211-Features\r\n MLST Type*;Size*;Modify*;UNIX.slink*;\r\n SIZE\r\n211 End".to_owned(),
            "MLST" => {
                let kind = if listing.is_some() { "dir" } else { "file" };
                format!("250-Here\r\n Type={kind};Size=1;Modify=20200101000000; {path}\r\n250 End")
            }
            "PASV" => {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                let port = listener.local_addr()?.port();
                data = Some(listener);
                format!("227 Entering (127,0,0,1,{},{})", port >> 8, port & 255)
            }
            "MLSD" if ends(path) => return Ok(out.write_all(b"421 You said nothing for too long.\r\n")?),
            "MLSD" | "RETR" => {
                out.write_all(b"150 here it comes\r\n")?;
                let mut channel = data.take().context("no data connection")?.accept()?.0;
                match listing {
                    Some((_, lines)) => lines
                        .iter()
                        .try_for_each(|line| channel.write_all(format!("{line}\r\n").as_bytes()))?,
                    None => channel.write_all(b"!")?,
                }
                "226 done".to_owned()
            }
            "SIZE" => "213 1".to_owned(),
            "MDTM" => "213 20200101000000".to_owned(),
            "SITE" | "OPTS" | "CKSM" => "500 no".to_owned(),
            _ => "200 ok".to_owned(),
        };
        out.write_all(format!("{answer}\r\n").as_bytes())?;
    }
    Ok(())
}

fn archive(source: Location, destination: Location) -> Result<Summary> {
    let preserve = Preserve { times: true, modes: true, links: true };
    let options = options().with(|o| {
        o.preserve = preserve;
        o.recovery.retries = 0;
        o.tuning.files = Auto::Set(1);
        o.storage.into_directories = false;
    });
    Ok(run(source, destination, &options)?.summary)
}

/// A name is both a link and a directory: the directory's files would be written to the target of
/// the link.
#[test]
fn nothing_is_written_through_a_link_that_the_server_made_up() -> Result<()> {
    let url = server(&[
        (
            "/d",
            &["Type=OS.unix=slink:../victim;Modify=20200101000000; x", "Type=dir;Modify=20200101000000; x"],
        ),
        ("/d/x", &["Type=file;Size=1;Modify=20200101000000; pwned", "Type=dir;Modify=20200101000000; sub"]),
        ("/d/x/sub", &["Type=file;Size=1;Modify=20200101000000; deeper"]),
    ])?;
    let here = Scratch::new()?;
    let victim = here.join("victim");
    fs::create_dir(&victim)?;
    let modified = fs::metadata(&victim)?.modified()?;
    let told = archive(url.clone(), Location::Local(here.join("t")))?;
    ensure!((told.files_done, told.files_failed) == (2, 1), "{told:?}");
    ensure!(here.join("t/x/pwned").exists() && fs::symlink_metadata(here.join("t/x"))?.is_dir());
    // The same holds for a link that an earlier copy made.
    fs::create_dir(here.join("u"))?;
    symlink("../victim", here.join("u/x"))?;
    let told = archive(url, Location::Local(here.join("u")))?;
    // Only the link itself is copied.
    ensure!(told.files_done == 1, "{told:?}");
    ensure!(told.failures.iter().any(|f| f.error.contains("its directory is a symbolic link")), "{told:?}");
    // The same holds if the directory itself was named.
    let named = here.join("s/x");
    fs::create_dir_all(&named)?;
    fs::write(named.join("f"), b"x")?;
    let told = run(
        Location::Local(named),
        Location::Local(here.join("u/")),
        &options().with(|o| o.preserve = Preserve { times: false, modes: false, links: true }),
    )?
    .summary;
    ensure!((told.files_done, told.files_failed) == (0, 1), "{told:?}");
    ensure!(fs::read_dir(&victim)?.count() == 0 && fs::metadata(&victim)?.modified()? == modified);
    Ok(())
}

#[test]
fn names_that_lead_away_are_not_copied() -> Result<()> {
    let url = server(&[(
        "/d",
        &[
            "Type=file;Size=1;Modify=20200101000000; ../../evil",
            "Type=file;Size=1;Modify=20200101000000; ok",
            "Type=dir;Modify=20200101000000; ..",
        ],
    )])?;
    let here = Scratch::new()?;
    let told = archive(url, Location::Local(here.join("a/b/t")))?;
    ensure!(told.failures.is_empty(), "{told:?}");
    // It is taken as a name in that directory, as from servers that list full paths.
    ensure!(here.join("a/b/t/evil").exists() && here.join("a/b/t/ok").exists());
    ensure!(!here.join("a/evil").exists() && !here.join("evil").exists());
    Ok(())
}

/// The plan's session is silent while it waits for files to be copied.
#[test]
fn a_session_that_is_ended_loses_no_part_of_a_tree() -> Result<()> {
    const TREE: Listings = &[
        ("/d", &["Type=file;Size=1;Modify=20200101000000; f", "Type=dir;Modify=20200101000000; sub"]),
        ("/d/sub", &["Type=file;Size=1;Modify=20200101000000; g"]),
    ];
    for ends in ["/d/sub", "/d"] {
        let here = Scratch::new()?;
        let told = run(impatient(TREE, ends)?, Location::Local(here.join("t/")), &options())?.summary;
        ensure!((told.files_done, told.files_failed) == (2, 0), "{ends}: {told:?}");
    }
    Ok(())
}
