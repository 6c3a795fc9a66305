//! Estimates of the rate over a hop between two servers, or between a server and this host: from
//! the stored results of past transfers, or from the models of parallel TCP.

use std::time::Duration;

use ropewalk_protocol::url::Url;
use ropewalk_tuning::route::{Estimate, Loss, PathFacts};

use crate::Options;
use crate::path_defaults::PathDefaults;
use crate::place::Endpoint;
use crate::tune::{Ends, send_window, stored_result};

/// The window that is assumed if the kernel does not report its limits.
const USUAL_WINDOW: f64 = (2u64 << 20) as f64;

/// The estimate from the stored result of a transfer from `source` to `destination`, where `None`
/// stands for this host. Returns `None` if no result is stored.
pub fn estimate_by_past_transfer(
    source: Option<&Url>,
    destination: Option<&Url>,
    options: &Options,
) -> Option<Estimate> {
    let name = |url: Option<&Url>| url.map(|url| Endpoint::new(url).name);
    let ends = Ends { source: name(source), destination: name(destination) };
    let past = stored_result(&ends, options)?;
    Some(Estimate::of_past_transfer(past.rate, past.age))
}

/// The estimate by the models of parallel TCP, with the number of streams with which a transfer of
/// a large file over this round-trip time starts.
pub fn estimate_by_model(rtt: Duration, loss: Loss, options: &Options) -> Estimate {
    let facts = PathFacts {
        rtt: rtt.as_secs_f64(),
        streams: PathDefaults::new(rtt).streams(options, None, false),
        window: send_window(options).unwrap_or(USUAL_WINDOW),
        capacity: options.tuning.capacity.map(|bits| bits as f64 / 8.0),
        loss,
    };
    Estimate::of_model(&facts).unwrap_or(Estimate::UNKNOWN)
}
