//! The progress line: fits the available information into the available columns.

use std::time::Instant;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::meter::{Meter, Phase, Waiting};
use crate::units;

/// Cells of the bar.
const SHORTEST: usize = 8;
const LONGEST: usize = 40;
/// Minimum columns of a file's name, and columns that it gets if there is room.
const NAME: usize = 12;
const LONG_NAME: usize = 32;
const TURNING: [char; 4] = ['|', '/', '-', '\\'];
/// Between two parts.
const GAP: usize = 2;

/// For a terminal, at most `columns` wide.
pub(crate) fn line(meter: &Meter, now: Instant, columns: usize, colour: bool) -> String {
    let Some(share) = meter.share() else {
        let turn = TURNING[meter.elapsed(now).as_millis() as usize / 250 % TURNING.len()];
        return fit(&format!("{turn} "), texts(meter, now), meter.name(), None, columns, colour);
    };
    fit("", texts(meter, now), meter.name(), Some(share), columns, colour)
}

/// For a log.
pub(crate) fn status(meter: &Meter, now: Instant) -> String {
    let mut texts = texts(meter, now);
    if meter.phase() == Phase::Moving && !meter.name().is_empty() {
        texts.push(meter.name().to_owned());
    }
    texts.join(", ")
}

/// The most important part first.
fn texts(meter: &Meter, now: Instant) -> Vec<String> {
    let found = || {
        let more = if meter.plan_complete { "" } else { " so far" };
        let files = units::count(meter.planned_files, "file");
        match meter.planned_bytes {
            0 => format!("{files}{more}"),
            bytes => format!("{files}, {}{more}", units::size(bytes)),
        }
    };
    match meter.phase() {
        Phase::Beginning => return vec!["beginning".to_owned()],
        Phase::Connecting(peer) if meter.planned_files == 0 => return vec![format!("connecting to {peer}")],
        Phase::Connecting(peer) => return vec![format!("connecting to {peer}"), found()],
        Phase::Listing if meter.planned_files == 0 => return vec!["listing".to_owned()],
        Phase::Listing => return vec!["listing".to_owned(), found()],
        Phase::Moving => {}
    }
    let mut texts = Vec::new();
    match meter.waiting() {
        Some(Waiting::Queue(position)) => texts.push(format!("waiting at the server, position {position}")),
        Some(Waiting::Relay(share)) => {
            texts.push(format!("the last server has {:.0} %", (share * 100.0).floor()));
        }
        None => {}
    }
    match meter.share() {
        Some(share) => {
            texts.push(format!("{:.0} %", (share * 100.0).floor()));
            texts.push(amount(meter));
        }
        None => texts.push(units::size(meter.bytes)),
    }
    texts.push(units::rate(meter.now(now)));
    match meter.left(now).filter(|_| meter.share().is_some()) {
        Some(seconds) if meter.plan_complete => texts.push(format!("{} left", units::clock(seconds))),
        Some(seconds) => texts.push(format!("{}+ left", units::clock(seconds))),
        None if meter.share().is_none() => texts.push(units::clock(meter.elapsed(now).as_secs_f64())),
        None => {}
    }
    if meter.planned_files > 1 {
        let more = if meter.plan_complete { "" } else { "+" };
        texts.push(format!("{}/{}{more} files", meter.files_done, meter.planned_files));
    }
    if meter.streams > 0 {
        texts.push(units::count(meter.streams.into(), "stream"));
    }
    texts.push(format!("average {}", units::rate(meter.average(now))));
    texts
}

/// `1.20/4.00 GiB`, or both with their units if those differ.
fn amount(meter: &Meter) -> String {
    let (done, all) = (units::size(meter.bytes), units::size(meter.planned_bytes));
    let more = if meter.plan_complete { "" } else { "+" };
    match (done.split_once(' '), all.split_once(' ')) {
        (Some((number, unit)), Some((_, of))) if unit == of => format!("{number}/{all}{more}"),
        _ => format!("{done}/{all}{more}"),
    }
}

/// Name, bar and texts. If there is not enough room, texts are dropped from the end, then the bar,
/// then the name.
fn fit(
    before: &str,
    mut texts: Vec<String>,
    name: &str,
    share: Option<f64>,
    columns: usize,
    colour: bool,
) -> String {
    let name_width = name.width();
    let short_name = if name.is_empty() { 0 } else { name_width.min(NAME) + GAP };
    let bar = if share.is_some() { SHORTEST + GAP } else { 0 };
    let width =
        |texts: &[String]| texts.iter().map(|text| text.width() + GAP).sum::<usize>().saturating_sub(GAP);
    let room = |texts: &[String]| columns.saturating_sub(before.width() + width(texts));
    // Share, amount, rate and time take precedence over the bar; other texts do not.
    while texts.len() > 4 && room(&texts) < short_name + bar || texts.len() > 1 && room(&texts) < short_name {
        texts.pop();
    }
    let mut rest = room(&texts);
    let mut line = before.to_owned();
    let bar = if share.is_some() && rest >= short_name + bar { bar } else { 0 };
    if rest > GAP && !name.is_empty() {
        let name = shortened(name, (rest - GAP - bar).min(LONG_NAME).min(name_width));
        rest = rest.saturating_sub(name.width() + GAP);
        line += &name;
        line += &" ".repeat(GAP);
    }
    if let Some(share) = share.filter(|_| bar > 0) {
        line += &cells(share, (rest - GAP).min(LONGEST), colour);
        line += &" ".repeat(GAP);
    }
    line += &shortened(&texts.join(&" ".repeat(GAP)), columns.saturating_sub(before.width()));
    line
}

fn cells(share: f64, all: usize, colour: bool) -> String {
    let done = ((share * all as f64) as usize).min(all);
    let (done, left) = ("█".repeat(done), "░".repeat(all - done));
    if colour { format!("\x1b[36m{done}\x1b[2m{left}\x1b[0m") } else { done + &left }
}

/// Shortens the text to this many columns. The middle is dropped, because names differ at their
/// ends.
fn shortened(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let room = columns.saturating_sub(1);
    let take = |chars: &mut dyn Iterator<Item = char>, room: usize| -> Vec<char> {
        let mut used = 0;
        chars
            .take_while(|c| {
                used += c.width().unwrap_or(0);
                used <= room
            })
            .collect()
    };
    let end = take(&mut text.chars().rev(), room.div_ceil(2));
    let start = take(&mut text.chars(), room / 2);
    start.into_iter().chain(['…']).chain(end.into_iter().rev()).take(columns).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn moving(start: Instant) -> Meter {
        let mut meter = Meter::new(start);
        meter.planned(12, 4 << 30, true);
        meter.started(7, "ftp://h/run42/a-very-long-name-of-a-file-0001.dat", Some(1 << 30), 0);
        meter.progress(start + Duration::from_secs(3), 1 << 30, 3, 2, 4);
        meter
    }

    #[test]
    fn line_fits_each_width() {
        let start = Instant::now();
        let (meter, now) = (moving(start), start + Duration::from_secs(3));
        for (columns, expected) in [
            (79, "a-very…001.dat  ██░░░░░░  25 %  1.00/4.00 GiB  341 MiB/s  0:09 left  3/12 files"),
            (59, "a-very-…0001.dat  25 %  1.00/4.00 GiB  341 MiB/s  0:09 left"),
        ] {
            let line = line(&meter, now, columns, false);
            assert_eq!(line, expected);
        }
        for columns in 1..200 {
            let line = line(&meter, now, columns, false);
            assert!(line.width() <= columns, "{columns}: {line}");
        }
    }

    #[test]
    fn bar_of_unknown_size_is_omitted() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut meter = Meter::new(start);
        let line = |meter: &Meter| line(meter, at(4000), 79, false);
        assert_eq!(line(&meter), "| beginning");
        meter.connecting("h:2811");
        assert_eq!(line(&meter), "| connecting to h:2811");
        meter.connected("h:2811");
        assert_eq!(line(&meter), "| listing");
        meter.planned(3, 5 << 20, false);
        assert_eq!(line(&meter), "| listing  3 files, 5.00 MiB so far");
        // The size of a pipe is unknown.
        meter.planned(1, 0, true);
        meter.started(0, "-", None, 0);
        meter.progress(at(4000), 8 << 20, 0, 1, 2);
        assert_eq!(line(&meter), "| -  8.00 MiB  2.00 MiB/s  0:04  2 streams  average 2.00 MiB/s");
        assert_eq!(status(&meter, at(4000)), "8.00 MiB, 2.00 MiB/s, 0:04, 2 streams, average 2.00 MiB/s, -");
    }

    #[test]
    fn place_in_a_queue_is_shown_until_bytes_move() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut meter = Meter::new(start);
        meter.planned(1, 5 << 20, true);
        meter.started(0, "a", Some(5 << 20), 0);
        meter.waits(0, Waiting::Queue(3));
        meter.progress(at(4000), 0, 0, 1, 0);
        let line = |meter: &Meter| line(meter, at(4000), 100, false);
        assert!(line(&meter).contains("waiting at the server, position 3  0 %"), "{}", line(&meter));
        assert!(status(&meter, at(4000)).starts_with("waiting at the server, position 3, "));
        meter.progress(at(4000), 1, 0, 1, 0);
        assert!(!line(&meter).contains("waiting"), "{}", line(&meter));
        meter.waits(0, Waiting::Queue(1));
        meter.ended(0);
        assert!(!line(&meter).contains("waiting"), "{}", line(&meter));
    }

    #[test]
    fn file_that_a_relay_passes_on_shows_what_the_last_server_has() {
        let start = Instant::now();
        let mut meter = Meter::new(start);
        meter.planned(1, 5 << 20, true);
        meter.started(0, "a", Some(5 << 20), 0);
        let later = start + Duration::from_secs(4);
        meter.progress(later, 5 << 20, 0, 1, 0);
        meter.waits(0, Waiting::Relay(0.399));
        assert!(line(&meter, later, 100, false).contains("the last server has 39 %  100 %"));
        meter.ended(0);
        assert!(!line(&meter, later, 100, false).contains("last server"));
    }

    #[test]
    fn long_name_is_shortened_in_the_middle() {
        for (name, columns, short) in [
            ("abcdefgh", 5, "ab…gh"),
            ("abc", 3, "abc"),
            ("日本語ファイル", 7, "日…ル"),
            ("ab", 1, "…"),
            ("ab", 0, ""),
        ] {
            assert_eq!(shortened(name, columns), short);
        }
    }
}
