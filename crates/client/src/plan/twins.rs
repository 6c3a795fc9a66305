//! Names that differ only in case or Unicode form (RFC 5198 section 3), and are the same name at
//! some destinations.

use bstr::BStr;
use unicode_normalization::UnicodeNormalization;

use super::*;
use crate::report::Report;

/// Two names that some servers and file systems treat as one.
pub(crate) struct Twins {
    pub source: Place,
    pub first: Place,
    pub second: Place,
}

/// The folded form of a name, by case and Unicode form; `None` if it is not UTF-8.
fn fold(name: &BStr) -> Option<String> {
    let name = name.to_str().ok()?;
    Some(if name.is_ascii() {
        name.to_ascii_lowercase()
    } else {
        name.nfc().flat_map(char::to_lowercase).nfc().collect()
    })
}

impl Plan<'_> {
    /// Records a name of a tree. Whether the destination treats it like another name of its
    /// directory is known once both files are there.
    pub(super) fn note_twins(
        &mut self,
        name: &BStr,
        from: &Place,
        to: &Place,
        gathered: &mut Gathered,
    ) -> Result<(), RemoteError> {
        if self.ctx.options().dry_run || !matches!(to, Place::Remote(..) | Place::Local(_)) {
            return Ok(());
        }
        let (directory, own) = (directory_of(name), base_name(name));
        let Some(folded) = fold(own.as_bstr()) else { return Ok(()) };
        if !gathered.folded.contains_key(directory) {
            let is_above = |above: &BString| {
                above.is_empty()
                    || directory.strip_prefix(above.as_slice()).is_some_and(|rest| rest.starts_with(b"/"))
            };
            gathered.folded.retain(|above, _| is_above(above));
            gathered.folded.insert(directory.into(), HashMap::new());
        }
        let names = gathered.folded.entry(directory.into()).or_default();
        let first = names.entry(folded).or_insert_with(|| own.into()).clone();
        if first != own {
            let first = self.sibling(to, &first);
            self.late.twins.push(Twins { source: from.clone(), first, second: to.clone() });
        }
        Ok(())
    }

    fn sibling(&self, place: &Place, name: &BString) -> Place {
        let path = place.path();
        with_path(place, parent(&path).map_or_else(|| name.clone(), |above| join(above, name)))
    }
}

/// Reports which of the two names was lost. `names` are the names in their directory.
pub(crate) fn tell_lost(report: &Report, twins: &Twins, names: &HashSet<BString>) {
    let paths = [&twins.first, &twins.second].map(|place| place.path());
    let both = paths.iter().all(|path| names.contains(base_name(path).as_bstr()));
    let one = |path: &BString| {
        let sought = fold(base_name(path).as_bstr());
        names.iter().any(|name| fold(name.as_bstr()) == sought)
    };
    // If neither is there, both have failed for another reason.
    if both || !one(&paths[0]) {
        return;
    }
    let what = format!(
        "{}: only one file of this name and {} exists: the destination does not distinguish case or \
         Unicode forms",
        twins.second.display(),
        base_name(&paths[0]).as_bstr()
    );
    let error = RemoteError::Usage(what);
    let entry = failure(twins.source.display(), twins.second.display(), error.kind(), error.to_string());
    report.failed_early(report.next_id(), entry);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_some_take_for_one() {
        let one = |a: &str, b: &str| fold(a.into()) == fold(b.into());
        assert!(one("README", "ReadMe") && one("\u{e9}", "e\u{301}") && one("\u{c9}", "e\u{301}"));
        assert!(!one("e", "\u{e9}") && !one("a", "b"));
        assert_eq!(fold(b"\xff".as_bstr()), None);
    }
}
