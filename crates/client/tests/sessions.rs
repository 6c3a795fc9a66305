//! Control sessions that the jobs of a client share.

mod common;

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use common::*;
use ropewalk_client::{
    Auto, Client, ClientLimits, DataMode, DataProtection, Event, JobSpec, Location, Options, Pair, Summary,
};
use ropewalk_tests::fake_server::{Data, FakeServer};
use ropewalk_tests::files::{ensure_same, write_random};
use ropewalk_tests::grid::Site;
use ropewalk_tests::peers;
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::server::{Kind, Setup};

const LIMIT: Duration = Duration::from_secs(60);

fn one_session() -> Options {
    options().with(|o| o.tuning.files = Auto::Set(1))
}

/// Options for [`five_bytes`], which does not support blocks.
fn in_stream_mode() -> Options {
    one_session().with(|o| o.data.mode = DataMode::Stream)
}

fn job(source: Location, destination: Location, options: &Options) -> JobSpec {
    let pair = Pair { source, destination, window: None };
    JobSpec::new(vec![pair]).with_options(options.clone())
}

fn run_job(client: &Client, source: Location, destination: Location, options: &Options) -> Result<Summary> {
    Ok(client.submit(job(source, destination, options))?.join()?)
}

fn ensure_done(summary: &Summary) -> Result<()> {
    ensure!((summary.files_done, summary.files_failed, summary.retries) == (1, 0, 0), "{summary:?}");
    Ok(())
}

fn through(proxy: &Proxy, bench: &Bench, path: &str) -> Location {
    place(&bench.server.url_at(proxy.address(), path))
}

/// A server whose files all have five bytes.
fn five_bytes() -> Result<FakeServer> {
    let script = |verb: &str, data: &Data, control: &mut std::net::TcpStream| -> Result<()> {
        ensure!(verb == "RETR", "{verb}");
        control.write_all(b"150 here it comes\r\n")?;
        data.open()?.write_all(b"12345")?;
        Ok(control.write_all(b"226 done\r\n")?)
    };
    FakeServer::start(5, Arc::new(script))
}

fn log_ins(server: &FakeServer) -> Vec<String> {
    server.commands().into_iter().filter(|command| command.starts_with("PASS")).collect()
}

fn wait_until(what: &str, holds: impl Fn() -> bool) -> Result<()> {
    let end = Instant::now() + LIMIT;
    while !holds() {
        ensure!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

#[test]
fn jobs_one_after_another_log_in_once() -> Result<()> {
    each(&servers(), |bench| {
        let proxy = Proxy::start(bench.server.address())?;
        write_random(&bench.local.join("f"), 1_000_001, 1)?;
        let client = Client::new(&ClientLimits::default());
        for n in 0..3 {
            let (up, back) = (format!("up{n}"), format!("back{n}"));
            let sent = run_job(&client, bench.here("f"), through(&proxy, &bench, &up), &one_session())?;
            ensure_done(&sent)?;
            let got = run_job(&client, through(&proxy, &bench, &up), bench.here(&back), &one_session())?;
            ensure_done(&got)?;
            ensure_same(&bench.local.join("f"), &bench.local.join(&back))?;
        }
        ensure!(proxy.control_connections() == 1, "{} connections", proxy.control_connections());
        Ok(())
    })
}

#[test]
fn jobs_between_two_servers_log_in_once_at_each_end() -> Result<()> {
    each(&gridftp(), |bench| {
        let proxy = Proxy::start(bench.server.address())?;
        write_random(&bench.remote.join("f"), 1_000_001, 2)?;
        let client = Client::new(&ClientLimits::default());
        for n in 0..3 {
            let to = format!("t{n}");
            let (source, destination) = (through(&proxy, &bench, "f"), through(&proxy, &bench, &to));
            ensure_done(&run_job(&client, source, destination, &one_session())?)?;
            ensure_same(&bench.remote.join("f"), &bench.remote.join(&to))?;
        }
        ensure!(proxy.control_connections() == 2, "{} connections", proxy.control_connections());
        Ok(())
    })
}

#[test]
fn jobs_of_different_passwords_or_users_never_share_a_session() -> Result<()> {
    let server = five_bytes()?;
    let here = ropewalk_tests::scratch::Scratch::new()?;
    let client = Client::new(&ClientLimits::default());
    let get = |user: &str, name: &str| -> Result<()> {
        let source = place(&format!("ftp://{user}@{}/f", server.address()));
        ensure_done(&run_job(&client, source, Location::Local(here.join(name)), &in_stream_mode())?)
    };
    for (n, user) in ["ada:one", "ada:two", "eve:one", "ada:one", "ada:two", "eve:one"].iter().enumerate() {
        get(user, &n.to_string())?;
    }
    ensure!(log_ins(&server) == ["PASS one", "PASS two", "PASS one"], "{:?}", server.commands());
    // The same holds if the options have the password.
    let source = || place(&format!("ftp://{}/f", server.address()));
    for (n, password) in ["three", "four", "three"].iter().enumerate() {
        let options = in_stream_mode().with(|o| {
            o.login.user = Some("ada".to_owned());
            o.login.password = Some(ropewalk_protocol::command::Password::new(*password));
        });
        let to = Location::Local(here.join(format!("o{n}")));
        ensure_done(&run_job(&client, source(), to, &options)?)?;
    }
    ensure!(log_ins(&server)[3..] == ["PASS three", "PASS four"], "{:?}", server.commands());
    Ok(())
}

#[test]
fn session_that_broke_between_two_jobs_is_replaced_without_a_retry() -> Result<()> {
    each(&servers(), |bench| {
        let proxy = Proxy::start(bench.server.address())?;
        write(&bench.remote.join("f"), b"a file")?;
        let client = Client::new(&ClientLimits::default());
        // Retries are not permitted.
        let options = one_session().with(|o| o.recovery.retries = 0);
        for n in 1..=3 {
            let to = format!("t{n}");
            ensure_done(&run_job(&client, through(&proxy, &bench, "f"), bench.here(&to), &options)?)?;
            ensure_same(&bench.remote.join("f"), &bench.local.join(&to))?;
            ensure!(proxy.control_connections() == n, "{} connections", proxy.control_connections());
            proxy.cut();
        }
        Ok(())
    })
}

#[test]
fn session_of_a_job_that_was_cancelled_in_a_transfer_is_not_used_again() -> Result<()> {
    each(&servers(), |bench| {
        let proxy = Proxy::start(bench.server.address())?;
        write_random(&bench.remote.join("f"), 3_000_001, 3)?;
        proxy.set_rate(Some(1_000_000));
        let client = Client::new(&ClientLimits::default());
        let source = || through(&proxy, &bench, "f");
        let slow = client.submit(job(source(), bench.here("t"), &one_session()))?;
        proxy.wait_for(200_000, LIMIT)?;
        slow.control().cancel();
        ensure!(slow.join()?.interrupted);
        proxy.set_rate(None);
        ensure_done(&run_job(&client, source(), bench.here("t"), &one_session())?)?;
        ensure_same(&bench.remote.join("f"), &bench.local.join("t"))?;
        ensure!(proxy.control_connections() == 2, "{} connections", proxy.control_connections());
        Ok(())
    })
}

#[test]
fn session_of_a_job_whose_file_is_missing_is_used_again() -> Result<()> {
    each(&servers(), |bench| {
        let proxy = Proxy::start(bench.server.address())?;
        write(&bench.remote.join("f"), b"a file")?;
        let client = Client::new(&ClientLimits::default());
        let failed = run_job(&client, through(&proxy, &bench, "none"), bench.here("t"), &one_session())?;
        ensure!(failed.files_failed == 1, "{failed:?}");
        ensure_done(&run_job(&client, through(&proxy, &bench, "f"), bench.here("t"), &one_session())?)?;
        ensure!(proxy.control_connections() == 1, "{} connections", proxy.control_connections());
        Ok(())
    })
}

#[test]
fn idle_session_ends_with_quit_after_its_time_and_with_its_client() -> Result<()> {
    let here = ropewalk_tests::scratch::Scratch::new()?;
    let quits = |server: &FakeServer| server.commands().iter().filter(|command| *command == "QUIT").count();
    for (time, drops) in [(Duration::from_millis(50), false), (LIMIT, true)] {
        let server = five_bytes()?;
        let mut limits = ClientLimits::default();
        limits.idle_time = time;
        let client = Client::new(&limits);
        let source = place(&format!("ftp://ada:one@{}/f", server.address()));
        ensure_done(&run_job(&client, source, Location::Local(here.join("t")), &in_stream_mode())?)?;
        if drops {
            ensure!(quits(&server) == 0, "{:?}", server.commands());
            drop(client);
        }
        wait_until("the session stays open", || quits(&server) == 1)?;
    }
    Ok(())
}

#[test]
fn client_that_keeps_no_sessions_logs_in_for_each_job() -> Result<()> {
    let server = five_bytes()?;
    let here = ropewalk_tests::scratch::Scratch::new()?;
    let mut limits = ClientLimits::default();
    limits.idle_sessions = 0;
    let client = Client::new(&limits);
    for name in ["a", "b"] {
        let source = place(&format!("ftp://ada:one@{}/f", server.address()));
        ensure_done(&run_job(&client, source, Location::Local(here.join(name)), &in_stream_mode())?)?;
    }
    ensure!(log_ins(&server).len() == 2, "{:?}", server.commands());
    Ok(())
}

/// A sink that an idle session kept would prevent the end of the events.
#[test]
fn events_of_a_job_end_although_its_session_stays_and_later_ones_are_reported_to_the_next() -> Result<()> {
    let server = five_bytes()?;
    let here = ropewalk_tests::scratch::Scratch::new()?;
    let client = Client::new(&ClientLimits::default());
    let options = in_stream_mode().with(|o| o.trace_control = true);
    for name in ["a", "b"] {
        let source = place(&format!("ftp://ada:one@{}/f", server.address()));
        let mut handle = client.submit(job(source, Location::Local(here.join(name)), &options))?;
        let events: Vec<Event> = handle.events().context("no events")?.collect();
        ensure_done(&handle.join()?)?;
        let sent = |event: &Event| matches!(event, Event::Dialogue { line, .. } if line.starts_with("RETR"));
        ensure!(events.iter().filter(|event| sent(event)).count() == 1, "{events:?}");
    }
    ensure!(log_ins(&server).len() == 1, "{:?}", server.commands());
    Ok(())
}

/// The part file and its journal are used, as by the next run of an interrupted command.
#[test]
fn resumed_job_completes_the_part_of_a_file() -> Result<()> {
    const SIZE: u64 = 8_000_001;
    each(&gridftp(), |bench| {
        let proxy = Proxy::start(bench.server.address())?;
        write_random(&bench.remote.join("f"), SIZE, 5)?;
        proxy.set_rate(Some(8_000_000));
        let client = Client::new(&ClientLimits::default());
        let options = bench.known()?.with(|o| o.tuning.files = Auto::Set(1));
        let handle = client.submit(job(through(&proxy, &bench, "f"), bench.here("t"), &options))?;
        proxy.wait_for(SIZE / 2, LIMIT)?;
        let control = handle.control();
        control.pause();
        // The sessions of the job close.
        std::thread::sleep(Duration::from_millis(200));
        proxy.set_rate(None);
        control.resume();
        let summary = handle.join()?;
        ensure!(!summary.interrupted && (summary.files_done, summary.files_failed) == (1, 0), "{summary:?}");
        ensure_same(&bench.remote.join("f"), &bench.local.join("t"))?;
        ensure!(proxy.moved() < SIZE + SIZE / 2, "{} of {SIZE} bytes", proxy.moved());
        Ok(())
    })
}

/// The number of log-ins that a job reports.
fn connections(client: &Client, spec: JobSpec) -> Result<usize> {
    let mut handle = client.submit(spec)?;
    let events: Vec<Event> = handle.events().context("no events")?.collect();
    ensure_done(&handle.join()?)?;
    Ok(events.iter().filter(|event| matches!(event, Event::Connected { .. })).count())
}

#[test]
fn jobs_with_a_certificate_share_a_session_until_the_proxy_is_renewed() -> Result<()> {
    let site = Site::new()?;
    let content = site.content()?;
    let mut servers = vec![site.serve("", &[])?];
    if peers::available(&["globus-gridftp-server"]) {
        servers.push(site.gct(&[])?);
    }
    for protection in [DataProtection::Clear, DataProtection::Private] {
        let options = one_session().with(|o| {
            o.login.credential = Some(site.path("proxy"));
            o.trust.authorities = Some(site.path("certificates"));
            o.data_security.protection = protection;
        });
        for server in &servers {
            let client = Client::new(&ClientLimits::default());
            let there = place(&format!("{}/there", server.url));
            let here = |name: &str| Location::Local(site.path(name));
            let up = job(here("source"), there.clone(), &options);
            ensure!(connections(&client, up.clone())? == 1);
            for _ in 0..2 {
                ensure!(connections(&client, job(there.clone(), here("back"), &options))? == 0);
                ensure!(std::fs::read(site.path("back"))? == content);
                ensure!(connections(&client, up.clone())? == 0);
            }
            let renewed = ["proxy", "init", "--cert", "usercert.pem", "--key", "userkey.pem"];
            ropewalk_tests::process::run(site.command()?.args(renewed), LIMIT)?.succeeded()?;
            ensure!(connections(&client, up)? == 1);
        }
    }
    Ok(())
}

#[test]
fn idle_session_leaves_its_place_to_a_job_that_cannot_use_it() -> Result<()> {
    let settings = ropewalk_tests::scratch::Scratch::new()?;
    let config = settings.join("server.toml");
    write(&config, b"[limits]\nsessions = 1\n")?;
    let limited = |setup: Setup| setup.argument("--config").argument(config.as_path());
    let bench = Bench::with(Kind::Ropewalk, limited)?.context("no server")?;
    write(&bench.remote.join("f"), b"a file")?;
    let client = Client::new(&ClientLimits::default());
    let options = one_session().with(|o| o.recovery.retries = 0);
    for (name, ascii) in [("a", false), ("b", true), ("c", false)] {
        let options = options.clone().with(|o| o.data.ascii = ascii);
        ensure_done(&run_job(&client, bench.url("f"), bench.here(name), &options)?)?;
    }
    Ok(())
}
