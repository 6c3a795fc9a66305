//! Changes the paths of a running lab. [`change`] runs in another process and sends its changes to
//! the lab's control socket. The lab applies each and adds a warning to its result, because the
//! result no longer shows the scenario alone.

use super::{Event, RunError, lab::Lab, registry};
use crate::{
    emulator::{Change, ControlSocket, Path, Request, ask, units},
    scenario::{Step, Value, parse_field},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::unix::net::UnixListener,
    sync::Arc,
};

/// Changes paths of a running lab at once, by fields such as `links[0].path.both.loss` or
/// `links[0].path.round_trip`. Returns each changed link (`links[0]`) with its new path. The result
/// of the lab will have a warning about the change.
///
/// # Errors
/// [`RunError::NotRoot`], [`RunError::NoSuchLab`], [`RunError::Change`]. If the change of one link
/// is rejected, earlier links stay changed.
pub fn change(lab: &str, settings: &[(String, Value)]) -> Result<Vec<(String, Path)>, RunError> {
    let changes = changes(settings)?;
    if !rustix::process::geteuid().is_root() {
        return Err(RunError::NotRoot);
    }
    registry::find(lab)?;
    let one = |(link, change): (String, Change)| {
        let failed = |message: String| RunError::Change { field: link.clone(), message };
        let stream = registry::control(lab).map_err(|error| failed(error.to_string()))?;
        let request = Request::Change { path: Some(link.clone()), change: Box::new(change) };
        let answer = ask(stream, &request).map_err(|error| failed(error.to_string()))?;
        let path = serde_json::from_value(answer).map_err(|error| failed(error.to_string()))?;
        Ok((link, path))
    };
    changes.into_iter().map(one).collect()
}

/// Lets other processes change the paths of a lab. Each change adds a warning to the result.
pub(super) fn allow(lab: &Lab, listener: UnixListener) -> io::Result<ControlSocket> {
    let controls = lab.links.iter().enumerate();
    let paths = controls.map(|(index, link)| (format!("links[{index}]"), link.emulator.control())).collect();
    let (zero, warnings, events) = (lab.zero, lab.warnings.clone(), lab.options.events.clone());
    let told = move |link: &str, change: &Change| {
        let change = serde_json::to_string(change).unwrap_or_default();
        let at = zero.elapsed().as_secs_f64();
        let warning = format!("{link} was changed from outside after {at:.1} s: {change}");
        if let Some(events) = &events {
            events(&Event::Warning(warning.clone()));
        }
        warnings.lock().push(warning);
    };
    ControlSocket::start_telling(listener, paths, Arc::new(told))
}

/// Converts the settings to one change per link.
fn changes(settings: &[(String, Value)]) -> Result<BTreeMap<String, Change>, RunError> {
    let mut changes = BTreeMap::<String, Change>::new();
    // `round_trip` sets both delays, so a link may not have `round_trip` and `delay` in the same
    // call.
    let (mut round_trips, mut delays) = (BTreeSet::new(), BTreeSet::new());
    for (field, value) in settings {
        let wrong = |message: String| RunError::Change { field: field.clone(), message };
        let expected = || wrong("expected for example links[0].path.both.loss".into());
        let steps = parse_field(field).ok_or_else(expected)?;
        let [Step::Key(links), Step::Index(index), Step::Key(path), inner @ ..] = steps.as_slice() else {
            return Err(expected());
        };
        if links != "links" || path != "path" || inner.is_empty() {
            return Err(expected());
        }
        let change = changes.entry(format!("links[{index}]")).or_default();
        let last = inner.last();
        let is = |name: &str| matches!(last, Some(Step::Key(key)) if key == name);
        if is("at") {
            return Err(wrong("it is changed at once: a time is for `changes` in a scenario".into()));
        }
        if is("round_trip") {
            round_trips.insert(*index);
        }
        if is("delay") {
            delays.insert(*index);
        }
        if round_trips.contains(index) && delays.contains(index) {
            return Err(wrong(
                "expected either `round_trip` or `delay`, which is half of it each way".into(),
            ));
        }
        if is("round_trip") && inner.len() == 1 {
            let round_trip =
                units::parse_duration(&value.to_string()).map_err(|error| wrong(error.to_string()))?;
            change.forward.delay = Some(round_trip / 2);
            change.backward.delay = Some(round_trip - round_trip / 2);
            continue;
        }
        // The field is added to the fields of the link that are already there, so that several
        // fields of a link change together.
        let mut table = toml::Table::try_from(&*change).map_err(|error| wrong(error.to_string()))?;
        put(&mut table, inner, value).ok_or_else(expected)?;
        let new = toml::Value::Table(table).try_into();
        *change = new.map_err(|error: toml::de::Error| wrong(error.message().trim().replace('\n', ", ")))?;
        if change.mtu.is_some_and(|mtu| mtu < 1280) {
            return Err(wrong("expected at least 1280, the least that IPv6 works with".into()));
        }
    }
    Ok(changes)
}

/// Puts a value into nested tables. Returns `None` if a list or another value is in conflict with
/// the path of keys.
fn put(table: &mut toml::Table, steps: &[Step], value: &Value) -> Option<()> {
    let (Step::Key(key), rest) = steps.split_first()? else { return None };
    if rest.is_empty() {
        table.insert(key.clone(), toml::Value::try_from(value).ok()?);
        return Some(());
    }
    let inner = table.entry(key.clone()).or_insert_with(|| toml::Value::Table(toml::Table::new()));
    put(inner.as_table_mut()?, rest, value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::emulator::Loss;
    use std::time::Duration;

    fn read(settings: &[(&str, &str)]) -> Result<BTreeMap<String, Change>, String> {
        let text = |value: &str| value.parse().map_or_else(|_| Value::Text(value.into()), Value::Integer);
        let settings: Vec<_> =
            settings.iter().map(|(field, value)| ((*field).to_owned(), text(value))).collect();
        changes(&settings).map_err(|error| error.to_string())
    }

    #[test]
    fn changes_of_several_fields_of_a_link_are_one_change() {
        let changes = read(&[
            ("links[0].path.both.loss", "1%"),
            ("links[1].path.round_trip", "30ms"),
            ("links[0].path.both.queue", "20"),
            ("links[0].path.backward.rate", "2Mbit/s"),
            ("links[0].path.mtu", "9000"),
        ])
        .unwrap();
        let first = &changes["links[0]"];
        assert_eq!(first.both.loss, Some(Loss::Bernoulli { p: 0.01 }));
        assert!(first.both.queue.is_some() && first.backward.rate.is_some() && first.mtu == Some(9000));
        assert_eq!(changes["links[1]"].backward.delay, Some(Duration::from_millis(15)));
    }

    #[test]
    fn changes_with_round_trip_and_delay_are_rejected() {
        let round_trip = ("links[0].path.round_trip", "80ms");
        for delay in ["links[0].path.both.delay", "links[0].path.forward.delay"] {
            for settings in [[round_trip, (delay, "10ms")], [(delay, "10ms"), round_trip]] {
                assert!(read(&settings).unwrap_err().contains("expected either"), "{settings:?}");
            }
        }
        assert!(read(&[round_trip, ("links[1].path.both.delay", "10ms")]).is_ok());
    }

    #[test]
    fn changes_of_an_unknown_or_fixed_field_are_rejected() {
        for (field, value, expected) in [
            ("kernel.congestion", "bbr", "expected for example"),
            ("links[0]", "1", "expected for example"),
            ("links[0].path", "1", "expected for example"),
            ("links[x].path.mtu", "1500", "expected for example"),
            ("links[0].between", "1", "expected for example"),
            ("links[0].path.mtu", "600", "expected at least 1280"),
            ("links[0].path.both.loss", "200%", "`200%` is no probability"),
            ("links[0].path.both.frob", "1", "unknown field `frob`"),
            ("links[0].path.both", "1", "invalid type"),
            ("links[0].path.round_trip", "5", "`5` is no duration"),
            ("links[0].path.mtu.x", "5", "invalid type"),
            ("links[0].path.at", "5s", "it is changed at once"),
        ] {
            let said = read(&[(field, value)]).unwrap_err();
            assert!(said.contains(expected), "{field}={value}: {said}");
        }
    }
}
