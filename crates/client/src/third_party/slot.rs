//! A file, or a range of one, on its way between two servers.

use super::*;

/// Stripes of a destination whose markers are heard.
const MOST_STRIPES: usize = 4096;

/// What one side has said of a file.
#[derive(Default)]
pub(super) struct Said {
    /// The final reply of the transfer, with a sum where it told one.
    pub(super) ended: Option<Option<String>>,
    pub(super) sum: Option<String>,
}

pub(super) struct Slot<'r> {
    pub(super) relay: Arc<Relay>,
    pub(super) range: Range<u64>,
    /// File offset = offset in markers + this.
    pub(super) origin: u64,
    /// What the destination had of it before.
    pub(super) there: RangeSet,
    pub(super) source: Said,
    pub(super) destination: Said,
    pub(super) counted: bool,
    pub(super) asked_sum: bool,
    /// Whether it is still the source that it was is asked, and not known.
    pub(super) version_due: bool,
    pub(super) committing: bool,
    /// It gets its name once that is known.
    pub(super) commits: bool,
    /// What was due when the destination was told to break off was not done, and is asked for once more.
    pub(super) again: bool,
    pub(super) asked_again: bool,
    /// Answers that are due, of both sides.
    pub(super) due: u32,
    pub(super) meter: Meter<'r>,
    /// 112: bytes of each stripe.
    pub(super) stripes: HashMap<u32, u64>,
    pub(super) error: Option<RemoteError>,
}

impl Slot<'_> {
    /// It is a range of a file that several pairs of sessions share out.
    pub(super) fn is_part(&self) -> bool {
        self.range != self.relay.whole()
    }

    /// What a marker tells of one of the destination's stripes. More of them than servers have are not noted.
    pub(super) fn hear(&mut self, perf: PerfMarker) {
        if self.stripes.len() < MOST_STRIPES || self.stripes.contains_key(&perf.stripe) {
            self.stripes.insert(perf.stripe, perf.bytes);
        }
    }

    /// Bytes that all stripes have moved, as the destination says: not more than there are.
    pub(super) fn told(&self) -> u64 {
        let sum = self.stripes.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        // Of a file whose size nobody knows, no more than files can have.
        sum.min(self.range.end - self.range.start).min(i64::MAX as u64)
    }

    /// What has failed is no business of those behind it: all of its data is where it belongs.
    pub(super) fn fails_alone(&self) -> bool {
        let wrong = self.relay.in_place && self.error.as_ref().is_some_and(is_of_no_use);
        // Who has its name already has to be removed before anybody begins again.
        self.committing && !wrong
    }

    /// The part of a file that failed for good, where there is nothing in it with which a later run could go on: what the
    /// source refused to send, and what is too small for it.
    pub(super) fn leftover(&self) -> Option<BString> {
        let relay = &self.relay;
        let error = self.error.as_ref().filter(|error| !error.is_transient())?;
        let unsent = error.refused_command() == Some("RETR");
        // Where something has come it is tried once more.
        let nothing = relay.resumed == 0 && (unsent && relay.present().is_empty() || !relay.is_resumable());
        (nothing && !relay.direct && self.range == relay.whole()).then(|| relay.path.clone())
    }

    pub(super) fn is_over(&self) -> bool {
        self.counted && self.due == 0 && self.error.is_none() && !self.asked_sum
    }
}
