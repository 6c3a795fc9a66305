#![allow(clippy::unwrap_used)]
use ropewalk_tuning::tuner::{Bottleneck, Kind, Knobs, Options};

use super::super::participant::{Participant, Wanted};
use super::super::spread::Spread;
use super::*;

mod division;
mod measuring;
mod results;

const RTT: Duration = Duration::from_millis(50);

fn path_tuner(streams: u32) -> Arc<PathTuner> {
    capped(streams, 24)
}

fn capped(streams: u32, cap: u32) -> Arc<PathTuner> {
    let options = Options { first_streams: streams, rtt: Some(0.05), ..Options::default() };
    let tuner = Kind::Fixed.build(&options).unwrap();
    let ends = Ends { source: Some("gsiftp://a".into()), destination: None };
    Arc::new(PathTuner::new(ends, RTT, tuner, true, 8, cap))
}

fn streams(path_tuner: &PathTuner) -> Vec<u32> {
    path_tuner.state.lock().participants.iter().map(|participant| participant.streams).collect()
}
