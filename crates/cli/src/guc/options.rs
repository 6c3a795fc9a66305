//! The command line of `globus-url-copy`: single dashes, long names; the last of equal options
//! wins.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use ropewalk_client::{
    Auto, ChecksumPolicy, DataCredential, DataMode, DataProtection, EndOptions, Options, Preserve,
    StallLimit, SyncLevel, Window,
};
use ropewalk_protocol::stack::StackSpec;
use ropewalk_storage::checksum::Algorithm;

use super::table::{Action, OPTIONS};
use crate::settings::port_range;

/// The request of the command line.
#[derive(Clone, Debug)]
pub(super) struct Guc {
    pub(super) help: bool,
    pub(super) version: bool,
    pub(super) continue_on_error: bool,
    pub(super) ascii: bool,
    pub(super) pairs_file: Option<PathBuf>,
    pub(super) create_destination: bool,
    pub(super) recurse: bool,
    pub(super) fast: bool,
    pub(super) run_time: Option<Duration>,
    pub(super) verbose: bool,
    pub(super) performance: bool,
    pub(super) debug: bool,
    pub(super) restart: bool,
    /// 0 is unlimited.
    pub(super) retries: u32,
    pub(super) retry_interval: Duration,
    pub(super) retry_limit: Option<Duration>,
    pub(super) stall: Option<Duration>,
    pub(super) dump_file: Option<PathBuf>,
    pub(super) dump_only: Option<PathBuf>,
    pub(super) relative_paths: bool,
    pub(super) tcp_buffer: Option<u64>,
    pub(super) block_size: Option<u64>,
    /// 0 is MODE S.
    pub(super) parallel: u32,
    pub(super) no_third_party: bool,
    pub(super) no_authentication: bool,
    pub(super) protection: DataProtection,
    /// Expected subject of both servers.
    pub(super) subject: Option<String>,
    pub(super) source: EndOptions,
    pub(super) destination: EndOptions,
    pub(super) data_credential: DataCredential,
    pub(super) offset: Option<u64>,
    pub(super) length: Option<u64>,
    pub(super) list: Option<OsString>,
    pub(super) delayed_passive: bool,
    pub(super) striped: bool,
    /// 0 is one range for each stripe.
    pub(super) disk_stack: Option<StackSpec>,
    pub(super) stripe_block: Option<u64>,
    /// Number of commands in the pipeline.
    pub(super) pipeline: Option<u32>,
    pub(super) concurrency: u32,
    pub(super) sync: bool,
    pub(super) sync_level: SyncLevel,
    pub(super) algorithm: Algorithm,
    pub(super) verify: bool,
    pub(super) preserve: Preserve,
    pub(super) urls: Vec<OsString>,
}

impl Default for Guc {
    fn default() -> Self {
        Self {
            help: false,
            version: false,
            continue_on_error: false,
            ascii: false,
            pairs_file: None,
            create_destination: false,
            recurse: false,
            fast: false,
            run_time: None,
            verbose: false,
            performance: false,
            debug: false,
            restart: false,
            retries: 5,
            retry_interval: Duration::ZERO,
            retry_limit: None,
            stall: Some(Duration::from_secs(600)),
            dump_file: None,
            dump_only: None,
            relative_paths: false,
            tcp_buffer: None,
            block_size: None,
            parallel: 0,
            no_third_party: false,
            no_authentication: false,
            protection: DataProtection::Auto,
            subject: None,
            source: EndOptions::default(),
            destination: EndOptions::default(),
            data_credential: DataCredential::Usual,
            offset: None,
            length: None,
            list: None,
            delayed_passive: false,
            striped: false,
            disk_stack: None,
            stripe_block: None,
            pipeline: None,
            concurrency: 1,
            sync: false,
            sync_level: SyncLevel::Time,
            algorithm: Algorithm::Md5,
            verify: false,
            preserve: Preserve::default(),
            urls: Vec::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    Usage(String),
    /// GCT supports the option, but Ropewalk does not.
    NotPossible(String),
}

/// Parses the arguments.
pub(super) fn parse(arguments: Vec<OsString>) -> Result<Guc, Wrong> {
    let mut guc = Guc::default();
    let mut arguments = arguments.into_iter().enumerate();
    while let Some((index, argument)) = arguments.next() {
        let text = argument.to_string_lossy();
        let Some(name) = text.strip_prefix('-').filter(|name| !name.is_empty()) else {
            guc.urls.push(argument);
            continue;
        };
        let wrong =
            |problem: &str| Wrong::Usage(format!("Error, argument #{} ({text}) : {problem}", index + 1));
        if name.starts_with('-') {
            return Err(wrong("double-dashed option syntax is not allowed"));
        }
        let option = OPTIONS
            .iter()
            .find(|option| option.names.contains(&name))
            .ok_or_else(|| wrong("unknown option"))?;
        let value = match option.argument {
            None => OsString::new(),
            Some(_) => arguments.next().ok_or_else(|| wrong("not enough arguments"))?.1,
        };
        match option.action {
            Action::Set(set) => set(&mut guc, value).map_err(|problem| wrong(&problem))?,
            Action::Ignored => {}
            Action::NotPossible => {
                let what = if option.help.is_empty() { String::new() } else { format!(" ({})", option.help) };
                return Err(Wrong::NotPossible(format!(
                    "-{name} is not supported by this program{what}; nothing was copied"
                )));
            }
        }
    }
    Ok(guc)
}

impl Guc {
    /// An offset of 0 alone means the whole file.
    pub(super) fn window(&self) -> Option<Window> {
        (self.offset.is_some_and(|offset| offset > 0) || self.length.is_some())
            .then(|| Window { offset: self.offset.unwrap_or(0), length: self.length })
    }

    /// Whether the other files are still copied after a failure. As with GCT, a list of files to
    /// copy is always completed.
    pub(super) fn goes_on(&self) -> bool {
        self.continue_on_error || self.dump_only.is_some()
    }

    /// The equivalent options of our client. Features that GCT only has on request are off:
    /// checksums, several files in flight.
    pub(super) fn options(&self) -> Options {
        let defaults = Options::default();
        let extended = self.parallel > 0 || self.fast || self.pipeline.is_some() || self.striped;
        Options::default().with(|o| {
            o.tuning.streams = Auto::Set(self.parallel.max(1));
            o.tuning.files = Auto::Set(self.concurrency);
            o.tuning.pipeline = Auto::Set(self.pipeline.unwrap_or(1));
            o.data.mode = if extended { DataMode::Extended } else { DataMode::Stream };
            o.data.ascii = self.ascii;
            o.data.block_size = self
                .block_size
                .and_then(|size| usize::try_from(size).ok())
                .map_or(defaults.data.block_size, |size| size.clamp(1024, 1 << 30));
            o.tuning.tcp_buffer = self.tcp_buffer.filter(|size| *size > 0);
            o.selection.recursive = self.recurse;
            o.storage.create_directories = self.create_destination || self.recurse;
            o.storage.into_directories = false;
            o.selection.sync = self.sync.then_some(self.sync_level);
            o.dry_run = self.dump_only.is_some();
            o.preserve = self.preserve;
            o.integrity.checksum =
                if self.verify { ChecksumPolicy::Require(self.algorithm) } else { ChecksumPolicy::None };
            o.recovery.retries = match (self.restart, self.retries) {
                (false, _) => 0,
                (true, 0) => u32::MAX,
                (true, retries) => retries,
            };
            o.recovery.retry_pause = if self.retry_interval.is_zero() {
                defaults.recovery.retry_pause
            } else {
                self.retry_interval
            };
            o.recovery.retry_limit = self.retry_limit;
            o.timeouts.stall = self.stall.map(|time| StallLimit { bytes_per_second: 1, time });
            o.recovery.stop_on_failure = !self.goes_on();
            o.selection.skip_dangling = true;
            o.data.delayed_passive = self.delayed_passive;
            o.data.stripes = self.striped.then_some(Auto::Auto);
            o.data.disk_stack.clone_from(&self.disk_stack);
            o.data.stripe_block = self.stripe_block;
            o.data.through_here = self.no_third_party;
            o.data_security.authentication = !self.no_authentication;
            o.data_security.protection = self.protection;
            o.trust.server_subject = self.subject.clone();
            o.login.source = self.source.clone();
            o.login.destination = self.destination.clone();
            o.data_security.credential = self.data_credential.clone();
            o.data.ports = std::env::var("GLOBUS_TCP_PORT_RANGE").ok().and_then(|range| {
                let range: Vec<_> = range.split_whitespace().collect();
                port_range(&range.join(",")).ok()
            });
            o.relative_paths = self.relative_paths;
            o.trace_control = self.debug;
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parsed(line: &str) -> Result<Guc, Wrong> {
        parse(line.split_whitespace().map(OsString::from).collect())
    }

    #[test]
    fn defaults_match_gct() {
        let options = parsed("ftp://a/b file:///c").unwrap().options();
        assert_eq!(options.data.mode, DataMode::Stream);
        assert_eq!(options.integrity.checksum, ChecksumPolicy::None);
        assert_eq!((options.recovery.retries, options.tuning.files), (0, Auto::Set(1)));
        assert!(!options.storage.create_directories && options.recovery.stop_on_failure);
        assert_eq!(options.timeouts.stall.unwrap().time, Duration::from_secs(600));
    }

    #[test]
    fn options_and_aliases_are_parsed() {
        let guc = parsed(
            "-vb -parallel 4 -cd -rst -rst-retries 0 -st 0 -pp -cc 3 -bs 2M -tcp-bs 8388608 -sync-level 3 -sync -c a b",
        );
        let guc = guc.unwrap();
        assert_eq!(guc.urls, ["a", "b"]);
        assert!(guc.performance && guc.verbose);
        let options = guc.options();
        assert_eq!(options.tuning.streams, Auto::Set(4));
        assert_eq!(options.data.mode, DataMode::Extended);
        assert_eq!((options.recovery.retries, options.timeouts.stall), (u32::MAX, None));
        assert_eq!((options.tuning.pipeline, options.tuning.files), (Auto::Set(10), Auto::Set(3)));
        assert_eq!((options.data.block_size, options.tuning.tcp_buffer), (2 << 20, Some(8 << 20)));
        assert_eq!(options.selection.sync, Some(SyncLevel::Checksum));
        assert!(!options.recovery.stop_on_failure);
    }

    #[test]
    fn credentials_apply_to_their_ends() {
        let options = |line| parsed(line).unwrap().options();
        let both = options("-cred p -dc q -ss /CN=a -ds /CN=b a b");
        assert_eq!(both.login.source.credential.as_deref(), Some("p".as_ref()));
        assert_eq!(both.login.destination.credential.as_deref(), Some("q".as_ref()));
        assert_eq!(both.login.source.server_subject.as_deref(), Some("/CN=a"));
        assert_eq!(both.login.destination.server_subject.as_deref(), Some("/CN=b"));
        assert_eq!(options("-sc p a b").login.source, options("-src-cred p a b").login.source);
        assert_eq!(options("-data-cred auto a b").data_security.credential, DataCredential::Fresh);
        assert_eq!(options("-data-cred f a b").data_security.credential, DataCredential::File("f".into()));
        assert_eq!(options("a b").data_security.credential, DataCredential::Usual);
    }

    #[test]
    fn checksums_are_compared_on_request_only() {
        let with = |line| parsed(line).unwrap().options().integrity.checksum;
        assert_eq!(with("-verify-checksum a b"), ChecksumPolicy::Require(Algorithm::Md5));
        assert_eq!(with("-checksum -algo ADLER32 a b"), ChecksumPolicy::Require(Algorithm::Adler32));
        assert_eq!(with("-checksum-alg ADLER32 a b"), ChecksumPolicy::None);
    }

    #[test]
    fn disk_stacks_and_pipes_apply_to_their_ends() {
        let options = |words: &[&str]| {
            let words = words.iter().chain(&["ftp://a/b", "ftp://c/d"]).map(OsString::from);
            parse(words.collect()).unwrap().options()
        };
        let shown = |stack: Option<StackSpec>| stack.unwrap().to_string();
        let both = options(&["-fsstack", "popen:argv=#cat#/x,ordering"]);
        assert_eq!(shown(both.data.disk_stack), "popen:argv=#cat#/x,ordering");
        let ends = options(&["-src-pipe", "tar cf - /a#b", "-dst-fsstack", "popen:argv=|cat"]);
        assert_eq!(shown(ends.login.source.disk_stack), "popen:argv=$tar$cf$-$/a#b");
        assert_eq!(shown(ends.login.destination.disk_stack), "popen:argv=|cat");
        assert_eq!(shown(options(&["-P", "cat"]).data.disk_stack), "popen:argv=#cat");
        assert_eq!(options(&["-fsstack", "file"]).data.disk_stack, None);
    }

    #[test]
    fn offset_and_length_become_a_window() {
        assert_eq!(
            parsed("-off 3 -len 4 a b").unwrap().window(),
            Some(Window { offset: 3, length: Some(4) })
        );
        assert_eq!(parsed("-off 3 -len -1 a b").unwrap().window(), Some(Window { offset: 3, length: None }));
        assert_eq!(parsed("a b").unwrap().window(), None);
    }

    #[test]
    fn stripe_and_stack_options_are_parsed() {
        let options = parsed("-stripe -sbs 65536 a b").unwrap().options();
        assert_eq!((options.data.stripes, options.data.stripe_block), (Some(Auto::Auto), Some(65536)));
        assert_eq!((options.data.mode, options.tuning.streams), (DataMode::Extended, Auto::Set(1)));
        assert_eq!(parsed("-p 4 a b").unwrap().options().data.stripes, None);
        for stack in ["tcp", "tcp,gsi", "gsi,tcp", "gsi", "default"] {
            let line = format!("-fsstack file -dcstack {stack} -dst-dcstack {stack} a b");
            let options = parsed(&line).unwrap().options();
            assert_eq!(
                (options.login.source.stack, options.login.destination.stack),
                (None, None),
                "{stack}"
            );
        }
        let options = parsed("-dcstack udt -dst-dcstack tcp:sndbuf=1 a b").unwrap().options();
        let shown = |stack: Option<StackSpec>| stack.unwrap().to_string();
        assert_eq!(shown(options.login.source.stack), "udt");
        assert_eq!(shown(options.login.destination.stack), "tcp:sndbuf=1");
        let options = parsed("-udt a b").unwrap().options();
        for login in [options.login.source, options.login.destination] {
            assert_eq!(shown(login.stack), "udt");
        }
    }

    #[test]
    fn invalid_arguments_are_reported() {
        let usage = |line, problem: &str| match parsed(line) {
            Err(Wrong::Usage(text)) => assert!(text.ends_with(problem), "{text}"),
            other => panic!("{other:?}"),
        };
        usage("-foo a b", "argument #1 (-foo) : unknown option");
        usage("a b --help", "argument #3 (--help) : double-dashed option syntax is not allowed");
        usage("-p", "argument #1 (-p) : not enough arguments");
        usage("-p x a b", "expected a whole number");
        usage("-p 1025 a b", "expected a whole number up to 1024");
        usage("-dcstack tcp, a b", "a driver of the stack has no name");
        usage("-fsstack file, a b", "a driver of the stack has no name");
        usage("-P a;b a b", "a command must not contain ';', which ends an option of a stack");
        assert_eq!(parsed("-p 2 - file:///x").unwrap().urls, ["-", "file:///x"]);
    }
}
