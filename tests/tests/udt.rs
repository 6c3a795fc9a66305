//! Data connections over UDT with GCT, which uses libudt: both programs in both roles.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use ropewalk_tests::grid::{LIMIT, Site, offset_was_used_twice};
use ropewalk_tests::peers;
use ropewalk_tests::process::{self, run};

/// Debian's package libglobus-xio-udt-driver.
const GCT_DRIVER: &str = "/usr/lib/x86_64-linux-gnu/libglobus_xio_udt_driver.so";
const GCT_SERVER: &[&str] = &["-dc-whitelist", "tcp,gsi,udt", "-threads", "2"];
const OURS: &str = "[data]\ndrivers = ['tcp', 'udt', 'gsi']\n";

fn available() -> bool {
    peers::available(&["globus-gridftp-server", "globus-url-copy"])
        && (Path::new(GCT_DRIVER).exists() || !peers::skip("not installed: libglobus-xio-udt-driver"))
}

#[test]
fn ropewalk_over_udt_with_a_gct_server_copies_both_ways() {
    if !available() {
        return;
    }
    let site = Site::new().unwrap();
    let content = site.content().unwrap();
    let gct = site.gct(GCT_SERVER).unwrap();
    for (mode, streams) in [("stream", "1"), ("extended", "1"), ("extended", "4")] {
        let options = ["--stack", "udt", "--mode", mode, "--streams", streams, "--retries", "0"];
        let url = format!("{}/copy-{mode}-{streams}", gct.url);
        site.cp(&options, "source", &url).unwrap().succeeded().unwrap();
        site.cp(&options, &url, "back").unwrap().succeeded().unwrap();
        assert!(fs::read(site.path("back")).unwrap() == content, "{mode} {streams}");
    }
}

#[test]
fn globus_url_copy_over_udt_with_a_ropewalk_server_copies_both_ways() {
    if !available() {
        return;
    }
    let site = Site::new().unwrap();
    let content = site.content().unwrap();
    let ours = site.serve(OURS, &[]).unwrap();
    let file = |name: &str| format!("file://{}", site.path(name).display());
    for streams in [&[][..], &["-p", "1"], &["-p", "4"]] {
        let copy = |from: &str, to: &str| {
            let mut command = process::command("globus-url-copy");
            site.environment(&mut command);
            // Without it the client accepts connections in its only thread, and hangs.
            command.env("GLOBUS_THREAD_MODEL", "pthread").arg("-udt").args(streams).args([from, to]);
            run(&mut command, LIMIT).unwrap().succeeded().unwrap();
        };
        let url = format!("{}/copy", ours.url);
        copy(&file("source"), &url);
        for _ in 0..2 {
            if !offset_was_used_twice(&site.path("source"), &site.path("root/copy")).unwrap() {
                break;
            }
            copy(&file("source"), &url);
        }
        assert!(fs::read(site.path("root/copy")).unwrap() == content, "{streams:?}");
        copy(&url, &file("back"));
        assert!(fs::read(site.path("back")).unwrap() == content, "{streams:?}");
    }
}

#[test]
fn third_party_copies_over_udt_between_gct_and_ropewalk_are_equal() {
    if !available() {
        return;
    }
    let site = Site::new().unwrap();
    let content = site.content().unwrap();
    let (ours, gct) = (site.serve(OURS, &[]).unwrap(), site.gct(GCT_SERVER).unwrap());
    fs::copy(site.path("source"), site.path("root/file")).unwrap();
    for (from, to) in [(&ours, &gct), (&gct, &ours)] {
        let (from, to) = (format!("{}/file", from.url), format!("{}/third", to.url));
        let options = ["--stack", "udt", "--retries", "0"];
        site.cp(&options, &from, &to).unwrap().succeeded().unwrap();
        assert!(fs::read(site.path("root/third")).unwrap() == content, "{from} {to}");
    }
}

/// A copy with `udt` in its stack uses nothing else: it fails if the server does not offer UDT.
#[test]
fn copy_over_udt_from_a_server_without_udt_fails() {
    if !available() {
        return;
    }
    let site = Site::new().unwrap();
    site.content().unwrap();
    fs::copy(site.path("source"), site.path("root/file")).unwrap();
    for server in [site.serve("", &[]).unwrap(), site.gct(&[]).unwrap()] {
        let url = format!("{}/file", server.url);
        let outcome = site.cp(&["--stack", "udt", "--retries", "0"], &url, "back").unwrap();
        assert!(!outcome.status.success(), "{url}");
    }
}
