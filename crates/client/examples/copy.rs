//! Copies files: `cargo run --example copy -- gsiftp://host/data/ /tmp/data/`

use std::error::Error;

use ropewalk_client::{Cancel, Event, Options, Pair, copy, parse_location};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(source), Some(destination)) = (arguments.next(), arguments.next()) else {
        return Err("usage: copy SOURCE DESTINATION".into());
    };
    let pair =
        Pair { source: parse_location(source)?, destination: parse_location(destination)?, window: None };
    let options = Options::default().with(|o| o.selection.recursive = true);
    let tell = |event: Event| match event {
        Event::FileDone { bytes, checksum, .. } => {
            println!("{bytes} bytes, {}", checksum.unwrap_or_default());
        }
        Event::FileFailed { source, error, .. } => eprintln!("{source}: {error}"),
        _ => {}
    };
    let summary = copy(vec![pair], &options, &tell, &Cancel::new())?;
    println!("{} files, {} bytes, {:.1} s", summary.files_done, summary.bytes, summary.seconds);
    Ok(())
}
