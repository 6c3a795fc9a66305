//! Every command is parsed back from its line, and no line makes the parser panic.

#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};

use bstr::BString;
use proptest::prelude::*;
use ropewalk_protocol::command::{
    ChecksumAlgorithm, Command, DataAuthentication, EpsvArgument, MarkerKind, Password, Placement,
    Protection, Restart, Retrieval, Wrapping,
};
use ropewalk_protocol::data_key::DataKey;
use ropewalk_protocol::facts::{Fact, FactSet};
use ropewalk_protocol::hop_login::HopLogin;
use ropewalk_protocol::opts::{Layout, Options, RecursionOptions, RetrOptions};
use ropewalk_protocol::profiling::{Baseline, ProfileCommand};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::scitag::{SciTag, SciTagCommand};
use ropewalk_protocol::server::{Family, Mode, RepresentationType, Window};
use ropewalk_protocol::site::{SiteCommand, StoreAttributes};
use ropewalk_protocol::upload::{UploadCommand, UploadId, UploadParameters};

fn any_path() -> impl Strategy<Value = BString> {
    let byte = any::<u8>().prop_filter("ends a line", |b| !matches!(b, 0 | b'\n'));
    prop_oneof![
        "[ -~]{1,12}".prop_map(BString::from),
        prop::collection::vec(byte, 1..12).prop_map(BString::from)
    ]
}

/// One to three words.
fn any_text() -> impl Strategy<Value = BString> {
    "[!-~]{1,6}( [!-~]{1,6}){0,2}".prop_map(BString::from)
}

fn any_word() -> impl Strategy<Value = BString> {
    "[!-~]{1,10}".prop_map(BString::from)
}

fn any_number() -> impl Strategy<Value = u64> {
    prop_oneof![0..100u64, any::<u64>()]
}

fn any_algorithm() -> impl Strategy<Value = ChecksumAlgorithm> {
    prop::sample::select(ChecksumAlgorithm::ALL.to_vec())
}

/// Times in the years 0000 to 9999.
fn any_time() -> impl Strategy<Value = i64> {
    -62_167_219_200..=253_402_300_799i64
}

fn any_address() -> impl Strategy<Value = SocketAddr> {
    let ip = prop_oneof![
        any::<u32>().prop_map(|n| Ipv4Addr::from(n).into()),
        any::<u128>().prop_map(|n| Ipv6Addr::from(n).into()),
    ];
    (ip, 1..=u16::MAX).prop_map(|(ip, port)| SocketAddr::new(ip, port))
}

fn any_family() -> impl Strategy<Value = Family> {
    prop_oneof![Just(Family::V4), Just(Family::V6)]
}

fn any_restart() -> impl Strategy<Value = Restart> {
    let ranges = prop::collection::vec((0..1000u64, 1..50u64), 1..8);
    prop_oneof![
        any_number().prop_map(Restart::Offset),
        ranges.prop_map(|r| {
            Restart::Ranges(r.into_iter().map(|(start, length)| start..start + length).collect::<RangeSet>())
        }),
    ]
}

fn any_module() -> impl Strategy<Value = (BString, BString)> {
    ("[a-z]{1,6}", "[ -!#-~]{0,10}").prop_map(|(name, parameters)| (name.into(), parameters.into()))
}

fn any_options() -> impl Strategy<Value = Options> {
    let layout = prop_oneof![Just(Layout::Partitioned), Just(Layout::Blocked)];
    let checksum = prop::option::of(any_algorithm().prop_filter("combinable", |a| a.is_combinable()));
    let congestion = prop::option::of("[a-z0-9_-]{1,15}".prop_filter_map("a word", |n| n.parse().ok()));
    let retr = (
        prop::option::of(layout),
        prop::option::of(any_number()),
        prop::option::of(1..u32::MAX),
        prop::option::of(any::<u32>()),
        prop::option::of(checksum),
        prop::option::of(congestion),
        any::<(Option<bool>, Option<bool>, Option<u32>)>(),
    )
        .prop_map(|(layout, block_size, parallelism, markers, checksum, congestion, switches)| {
            let (path_info, resend, nodes) = switches;
            RetrOptions {
                layout,
                block_size,
                parallelism,
                markers,
                checksum,
                congestion,
                path_info,
                resend,
                nodes,
            }
        })
        .prop_filter("empty", |options| *options != RetrOptions::default());
    let recursion = (any::<Option<bool>>(), any::<Option<bool>>())
        .prop_map(|(continue_on_error, traverse_links)| RecursionOptions {
            continue_on_error,
            traverse_links,
        })
        .prop_filter("empty", |options| *options != RecursionOptions::default());
    prop_oneof![
        retr.prop_map(Options::Retr),
        any::<bool>().prop_map(|delayed| Options::Passive { delayed }),
        prop::sample::subsequence(Fact::ALL.to_vec(), 0..=13)
            .prop_map(|facts| Options::Facts(facts.into_iter().collect::<FactSet>())),
        recursion.prop_map(Options::Mlsr),
        any::<u32>().prop_map(|markers| Options::Checksum { markers }),
        any::<bool>().prop_map(|replaces| Options::Store { replaces }),
    ]
}

fn any_parameters() -> impl Strategy<Value = UploadParameters> {
    let parameters = (
        prop::option::of(any_number()),
        prop::option::of(any_time()),
        prop::option::of(0..0o1000u32),
        prop::option::of((any_algorithm(), any_word())),
        any::<bool>(),
        any::<bool>(),
    );
    parameters.prop_map(|(size, modified, mode, checksum, resume, holes)| UploadParameters {
        size,
        modified,
        mode,
        checksum,
        resume,
        holes,
    })
}

fn any_upload() -> impl Strategy<Value = UploadCommand> {
    let id = || "[A-Za-z0-9._-]{1,64}".prop_map(|id| UploadId::new(id.as_bytes()).unwrap());
    prop_oneof![
        (id(), any_parameters(), any_path()).prop_map(|(id, parameters, path)| UploadCommand::Begin {
            id,
            parameters,
            path
        }),
        (id(), any_parameters()).prop_map(|(id, parameters)| UploadCommand::Commit { id, parameters }),
        id().prop_map(UploadCommand::Ranges),
        id().prop_map(UploadCommand::Suspend),
        id().prop_map(UploadCommand::Discard),
    ]
}

fn any_site() -> impl Strategy<Value = SiteCommand> {
    let attributes = (prop::option::of(any_time()), prop::option::of((any_algorithm(), any_path())))
        .prop_map(|(modified, checksum)| StoreAttributes { modified, checksum });
    let texts = prop::sample::select(vec![
        SiteCommand::AuthzAssert as fn(BString) -> SiteCommand,
        SiteCommand::ClientInfo,
        SiteCommand::Dsi,
        SiteCommand::Fault,
        SiteCommand::Http,
        SiteCommand::Restrict,
        SiteCommand::SetDiskStack,
        SiteCommand::SetNetStack,
        SiteCommand::Sharing,
        SiteCommand::TaskId,
        SiteCommand::Upas,
        SiteCommand::Uprt,
    ]);
    let paths = prop::sample::select(vec![
        SiteCommand::Chroot as fn(BString) -> SiteCommand,
        SiteCommand::Ranges,
        SiteCommand::Rdel,
        SiteCommand::SymlinkFrom,
        SiteCommand::SymlinkTo,
    ]);
    let numbers = prop::sample::select(vec![
        SiteCommand::Buffers as fn(u64) -> SiteCommand,
        SiteCommand::ReceiveBuffer,
        SiteCommand::SendBuffer,
    ]);
    prop_oneof![
        (texts, any_text()).prop_map(|(make, text)| make(text)),
        (paths, any_path()).prop_map(|(make, path)| make(path)),
        (numbers, any_number()).prop_map(|(make, n)| make(n)),
        prop::sample::select(vec![SiteCommand::Version, SiteCommand::WhoAmI, SiteCommand::Help(None)]),
        any_text().prop_map(|t| SiteCommand::Help(Some(t))),
        (any_word(), any_path()).prop_map(|(group, path)| SiteCommand::Chgrp { group, path }),
        (0..0o10000u32, any_path()).prop_map(|(mode, path)| SiteCommand::Chmod { mode, path }),
        (any_path(), any_path()).prop_map(|(target, link)| SiteCommand::Symlink { target, link }),
        (any_number(), any_path()).prop_map(|(length, path)| SiteCommand::Truncate { length, path }),
        (any_time(), any_path()).prop_map(|(modified, path)| SiteCommand::Utime { modified, path }),
        (1..=1024u32).prop_map(SiteCommand::Streams),
        (65..=u16::MAX).prop_map(|n| { SiteCommand::SciTag(SciTagCommand::Set(SciTag::new(n).unwrap())) }),
        prop::sample::select(vec![SciTagCommand::Ask, SciTagCommand::Remove]).prop_map(SiteCommand::SciTag),
        prop::sample::select(vec![
            ProfileCommand::Start { seconds: None, raw: true },
            ProfileCommand::Start { seconds: Some(60), raw: false },
            ProfileCommand::Clock,
            ProfileCommand::Stop,
            ProfileCommand::Fetch(None),
            ProfileCommand::Fetch(Some("sar".into())),
            ProfileCommand::Baseline(Baseline::Processor),
            ProfileCommand::Baseline(Baseline::Iperf),
        ])
        .prop_map(SiteCommand::Profile),
        prop::option::of(any::<(u64, [u8; 32])>())
            .prop_map(|key| SiteCommand::DataKey(key.map(|(number, secret)| DataKey::new(number, &secret)))),
        (any_word(), any_path(), 1u16..).prop_map(|(user, secret, port)| {
            let server = format!("h.example:{port}").parse().unwrap();
            SiteCommand::HopLogin(HopLogin { server, user, secret: Password::new(secret) })
        }),
        attributes.prop_map(SiteCommand::StorAttr),
        any_upload().prop_map(SiteCommand::Upload),
    ]
}

fn any_command() -> impl Strategy<Value = Command> {
    let fixed = prop::sample::select(vec![
        Command::Abor,
        Command::Cdup,
        Command::Epsv(None),
        Command::Epsv(Some(EpsvArgument::All)),
        Command::Feat,
        Command::Help(None),
        Command::Lang(None),
        Command::Lang(Some("EN".into())),
        Command::Mode(Mode::ExtendedBlock),
        Command::Mode(Mode::Stream),
        Command::Noop,
        Command::Pasv,
        Command::Prot(Protection::Clear),
        Command::Prot(Protection::Safe),
        Command::Prot(Protection::Private),
        Command::Pwd,
        Command::Quit,
        Command::Spas(None),
        Command::Stru,
        Command::Syst,
        Command::Type(RepresentationType::Ascii),
        Command::Type(RepresentationType::Image),
        Command::Dcau(DataAuthentication::None),
        Command::Dcau(DataAuthentication::SelfAuthentication),
    ]);
    let paths = prop::sample::select(vec![
        Command::Appe as fn(BString) -> Command,
        Command::Cwd,
        Command::Dele,
        Command::Mdtm,
        Command::Mkd,
        Command::Retr,
        Command::Rmd,
        Command::Rnfr,
        Command::Rnto,
        Command::Size,
        Command::Stor,
    ]);
    let optional_paths = prop::sample::select(vec![
        Command::List as fn(Option<BString>) -> Command,
        Command::Mlsc,
        Command::Mlsd,
        Command::Mlsr,
        Command::Mlst,
        Command::Nlst,
        Command::Stat,
    ]);
    let texts = prop::sample::select(vec![
        Command::Adat as fn(BString) -> Command,
        Command::Auth,
        Command::User,
        |text| Command::Dcau(DataAuthentication::Subject(text)),
        |text| Command::Help(Some(text)),
        |text| Command::Protected(Wrapping::Mic, text),
        |text| Command::Protected(Wrapping::Conf, text),
        |text| Command::Protected(Wrapping::Enc, text),
        |text| Command::Dcsc { kind: b'P', blob: Some(Password::new(text)) },
    ]);
    let numbers =
        prop::sample::select(vec![Command::Abuf as fn(u64) -> Command, Command::Allo, Command::Sbuf]);
    let retrieval = prop_oneof![
        (any_number(), any_number())
            .prop_map(|(offset, length)| Retrieval::Partial(Window { offset, length })),
        any_module().prop_map(|(name, parameters)| Retrieval::Module { name, parameters }),
    ];
    let placement = prop_oneof![
        any_number().prop_map(Placement::Adjusted),
        any_number().prop_map(Placement::Upload),
        any_module().prop_map(|(name, parameters)| Placement::Module { name, parameters }),
    ];
    let markers = prop_oneof![Just(MarkerKind::Restart), Just(MarkerKind::Performance)];
    prop_oneof![
        4 => fixed,
        4 => (paths, any_path()).prop_map(|(make, path)| make(path)),
        2 => (optional_paths, prop::option::of(any_path())).prop_map(|(make, path)| make(path)),
        2 => (texts, any_text()).prop_map(|(make, text)| make(text)),
        2 => (numbers, any_number()).prop_map(|(make, n)| make(n)),
        1 => any::<u32>().prop_map(|n| Command::Pbsz(n.into())),
        2 => (any_algorithm(), any_number(), prop::option::of(any_number()), any_path())
            .prop_map(|(algorithm, offset, length, path)| Command::Cksm { algorithm, offset, length, path }),
        1 => any_address().prop_map(Command::Eprt),
        1 => any_family().prop_map(|f| Command::Epsv(Some(EpsvArgument::Family(f)))),
        1 => any_family().prop_map(|f| Command::Spas(Some(f))),
        2 => (retrieval, any_path().prop_filter("quotes", |p| !p.contains(&b'"')))
            .prop_map(|(what, path)| Command::Eret { what, path }),
        2 => (placement, any_path().prop_filter("quotes", |p| !p.contains(&b'"')))
            .prop_map(|(place, path)| Command::Esto { place, path }),
        1 => (any_time(), any_path()).prop_map(|(modified, path)| Command::Mfmt { modified, path }),
        4 => any_options().prop_map(Command::Opts),
        1 => prop::option::of(any_path())
            .prop_map(|p| Command::Pass(p.map_or_else(Password::default, Password::new))),
        1 => (any::<u32>(), 1..=u16::MAX)
            .prop_map(|(ip, port)| Command::Port(SocketAddrV4::new(Ipv4Addr::from(ip), port))),
        2 => any_restart().prop_map(Command::Rest),
        1 => (any_algorithm(), any_word()).prop_map(|(algorithm, value)| Command::Scks { algorithm, value }),
        6 => any_site().prop_map(Command::Site),
        1 => prop::collection::vec(any_address(), 1..4).prop_map(Command::Spor),
        1 => (markers, any::<u32>()).prop_map(|(markers, seconds)| Command::Trev { markers, seconds }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn command_printed_is_parsed_back(command in any_command()) {
        let line = command.to_line().unwrap();
        prop_assert_eq!(Command::parse(&line), Ok(command), "{:?}", BString::from(line));
    }

    #[test]
    fn command_parse_on_any_bytes_does_not_panic(line in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Ok(command) = Command::parse(&line) {
            let _ = command.to_line();
        }
    }

    #[test]
    fn command_parse_on_any_arguments_does_not_panic(
        verb in prop::sample::select(vec![
            "OPTS RETR", "OPTS MLST", "OPTS PASV", "OPTS CKSM", "OPTS MLSR", "REST", "PORT", "EPRT", "SPOR", "EPSV", "CKSM",
            "ERET", "ESTO", "MFMT", "SITE STORATTR", "SITE CHMOD", "SITE UTIME", "SITE STREAMS", "SITE", "SCKS", "TREV", "ALLO", "DCSC",
        ]),
        arguments in "[ -~]{0,5}[0-9aAPp=;,.|\" -]{0,20}",
    ) {
        let line = format!("{verb} {arguments}");
        match Command::parse(line.as_bytes()) {
            // A command that was parsed can be printed and parsed again.
            Ok(command) => {
                let printed = command.to_line().unwrap();
                prop_assert_eq!(Command::parse(&printed), Ok(command));
            }
            Err(error) => {
                let reply = error.reply().to_bytes();
                prop_assert!(reply.ends_with(b"\r\n") && (b'4'..=b'5').contains(&reply[0]));
            }
        }
    }
}
