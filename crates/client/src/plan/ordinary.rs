//! Names that look like those of devices, at servers that have no devices there.

use super::*;

impl Plan<'_> {
    /// Whether a name of a device at a server is a plain file, because the server's root is not
    /// that of its system.
    pub(super) fn is_ordinary(&mut self, place: &Place) -> bool {
        // Our servers have virtual devices there, whatever their root is.
        const OURS: &[u8] = b"/dev/ropewalk-";
        let path = place.path();
        if !matches!(place, Place::Remote(..)) || !is_device(&path) || path.starts_with(OURS) {
            return false;
        }
        // Devices that each system has.
        let known: &[u8] = if path.starts_with(b"/dev/") { b"/dev/null" } else { b"/proc/self" };
        let spot = (self.key(place), BString::from(known));
        if let Some(&ordinary) = self.ordinary.get(&spot) {
            return ordinary;
        }
        let mut look = |side: &mut Side| match side {
            Side::Remote(session) if session.can.facts => match session.stat(known) {
                Ok(_) => Ok(false),
                Err(e) if e.breaks_session() => Err(e),
                Err(e) => Ok(e.kind() == FailureKind::NotFound),
            },
            Side::Local(_) | Side::Remote(_) => Ok(false),
        };
        let ordinary = self.ask(place, true, &mut look).unwrap_or(false);
        self.ordinary.insert(spot, ordinary);
        ordinary
    }
}
