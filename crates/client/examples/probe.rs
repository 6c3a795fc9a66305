use ropewalk_client::*;
fn main() {
    let mut args = std::env::args_os().skip(1).collect::<Vec<_>>();
    let dst = args.pop().unwrap();
    let src = args.pop().unwrap();
    let pair = Pair {
        source: parse_location(src).unwrap(),
        destination: parse_location(dst).unwrap(),
        window: None,
    };
    let mut options = Options {
        recursive: true,
        trace_control: std::env::var_os("T").is_some(),
        retries: 2,
        ..Options::default()
    };
    if let Ok(n) = std::env::var("P") {
        options.streams = Auto::Set(n.parse().unwrap());
    }
    if let Ok(n) = std::env::var("F") {
        options.files = Auto::Set(n.parse().unwrap());
    }
    if let Ok(n) = std::env::var("Q") {
        options.pipeline = Auto::Set(n.parse().unwrap());
    }
    if std::env::var_os("S").is_some() {
        options.mode = DataMode::Stream;
    }
    if std::env::var_os("NOSUM").is_some() {
        options.checksum = ChecksumPolicy::None;
    }
    if std::env::var_os("LINKS").is_some() {
        options.preserve = Preserve { times: true, modes: true, links: true };
    }
    if let Ok(n) = std::env::var("SYNC") {
        options.sync = Some(match n.as_str() {
            "0" => SyncLevel::Exists,
            "1" => SyncLevel::Size,
            "2" => SyncLevel::Time,
            _ => SyncLevel::Checksum,
        });
    }
    options.delete = std::env::var_os("DEL").is_some();
    let quiet = std::env::var_os("Z").is_some();
    let tell = |event: Event| {
        if !quiet {
            match event {
                Event::Dialogue { peer, direction, line } => eprintln!("{peer} {direction} {line}"),
                Event::Progress { .. } if std::env::var_os("T").is_none() => {}
                e => eprintln!("{}", serde_json::to_string(&e).unwrap()),
            }
        }
    };
    let summary = copy(vec![pair], &options, &tell, &Cancel::new()).unwrap();
    println!("{}", serde_json::to_string(&summary).unwrap());
}
