//! Plots of the machines: processors, disks, interfaces, memory.

use std::collections::BTreeMap;

use ropewalk_plot::{Axis, Panel, Series, Unit};

use super::{Figure, Figures, Row, axis, drawn};
use crate::profile::{HostProfile, Processor, SystemSample};
use crate::report::clean::plain;
use crate::report::ends::during;
use crate::report::series::Values;

/// Of each kind, this many devices with the largest values are drawn.
const DEVICES: usize = 3;

/// A label, and a function that returns the name and one figure of each device in a sample.
type Part<'p> = (&'static str, &'p dyn Fn(&SystemSample) -> Vec<(&str, f64)>);

impl Figures<'_> {
    pub(super) fn processors(&self) -> Option<Figure> {
        let panels = self.each_host(|host| {
            let samples = during(host, self.profile);
            let all: Vec<(f64, &Processor)> = samples
                .iter()
                .filter_map(|(time, sample)| {
                    Some((*time, sample.processors.iter().find(|one| one.name == "all")?))
                })
                .collect();
            let x: Vec<f64> = all.iter().map(|(time, _)| *time).collect();
            let part =
                |of: fn(&Processor) -> f64| -> Vec<f64> { all.iter().map(|(_, one)| of(one)).collect() };
            let layers = Series::stacked(
                &x,
                [
                    ("programs", part(|one| one.user)),
                    ("kernel", part(|one| one.system)),
                    ("interrupts", part(|one| one.irq + one.softirq)),
                    ("stolen", part(|one| one.steal)),
                    ("waiting for disks", part(|one| one.iowait)),
                ],
            );
            let busiest: Values = samples
                .iter()
                .filter_map(|(time, sample)| {
                    let each = sample.processors.iter().filter(|one| one.name != "all");
                    Some((*time, each.map(Processor::busy).max_by(f64::total_cmp)?))
                })
                .collect();
            let panel = Panel::new(Axis::linear(axis(host, ""), Unit::Share));
            let panel = layers.into_iter().fold(panel, Panel::series);
            let rows =
                [(String::new(), x.iter().map(|&x| (x, 0.0)).collect()), (String::new(), busiest.clone())];
            drawn(panel.series(Series::line("busiest one", busiest).colour(6)), &rows)
        });
        let caption = "What the processors of each machine were busy with, all of them together being 100 %. One processor \
                       alone can be full (line) while the others idle.";
        self.chart("cpu", "Processors", caption, panels)
    }

    /// One figure over time of the host's busiest devices.
    fn devices(&self, host: &HostProfile, parts: &[Part<'_>]) -> Vec<Row> {
        let samples = during(host, self.profile);
        let mut rows: Vec<(f64, Row)> = Vec::new();
        for (label, of) in parts {
            let mut each: BTreeMap<&str, Values> = BTreeMap::new();
            for (time, sample) in &samples {
                for (name, value) in of(sample) {
                    each.entry(name).or_default().push((*time, value));
                }
            }
            rows.extend(each.into_iter().map(|(name, values)| {
                let sum = values.iter().map(|value| value.1).sum();
                (sum, (format!("{} {label}", plain(name, 16)).trim().to_owned(), values))
            }));
        }
        rows.retain(|(sum, _)| *sum > 0.0);
        rows.sort_by(|a, b| b.0.total_cmp(&a.0));
        rows.truncate(DEVICES * parts.len().min(2));
        rows.into_iter().map(|(_, row)| row).collect()
    }

    fn device_panel(&self, host: &HostProfile, label: &str, unit: Unit, rows: Vec<Row>) -> Option<Panel> {
        let panel = Panel::new(Axis::linear(axis(host, label), unit));
        let panel = rows.iter().fold(panel, |panel, (name, values)| {
            panel.series(Series::line(name.clone(), values.iter().copied()))
        });
        drawn(panel, &rows)
    }

    pub(super) fn disks(&self) -> Option<Figure> {
        let panels = self.each_host(|host| {
            let rows = self.devices(
                host,
                &[
                    ("read", &|sample| {
                        sample.disks.iter().map(|disk| (disk.name.as_str(), disk.read)).collect()
                    }),
                    ("written", &|sample| {
                        sample.disks.iter().map(|disk| (disk.name.as_str(), disk.written)).collect()
                    }),
                ],
            );
            self.device_panel(host, "", Unit::BytesPerSecond, rows)
        });
        let caption = "What the disks read and wrote. Disks that did nothing are left out.";
        self.chart("disk", "Disks", caption, panels)
    }

    pub(super) fn utilisation(&self) -> Option<Figure> {
        let panels = self.each_host(|host| {
            let rows = self.devices(
                host,
                &[("", &|sample| {
                    sample.disks.iter().map(|disk| (disk.name.as_str(), disk.utilisation.min(1.0))).collect()
                })],
            );
            self.device_panel(host, "", Unit::Share, rows)
        });
        let caption = "Share of the time in which a disk had something to do. Disks that serve many requests at once can do \
                       more at 100 %.";
        self.chart("disk-busy", "Disks: busy", caption, panels)
    }

    pub(super) fn packets(&self) -> Option<Figure> {
        let mut panels = self.each_host(|host| {
            let rows = self.devices(
                host,
                &[
                    ("in", &|sample| {
                        sample
                            .interfaces
                            .iter()
                            .map(|one| (one.name.as_str(), one.received_packets))
                            .collect()
                    }),
                    ("out", &|sample| {
                        sample.interfaces.iter().map(|one| (one.name.as_str(), one.sent_packets)).collect()
                    }),
                ],
            );
            self.device_panel(host, "", Unit::Count(""), rows)
        });
        panels.extend(self.each_host(|host| {
            let rows = self.devices(
                host,
                &[
                    ("errors", &|sample| {
                        sample.interfaces.iter().map(|one| (one.name.as_str(), one.errors)).collect()
                    }),
                    ("dropped", &|sample| {
                        sample.interfaces.iter().map(|one| (one.name.as_str(), one.dropped)).collect()
                    }),
                ],
            );
            self.device_panel(host, "errors", Unit::Count(""), rows)
        }));
        let caption = "Packets per second that the network interfaces received and sent, and errors and drops where there were any.";
        self.chart("packets", "Network packets", caption, panels)
    }

    pub(super) fn network(&self) -> Option<Figure> {
        let panels = self.each_host(|host| {
            let rows = self.devices(
                host,
                &[
                    ("in", &|sample| {
                        sample
                            .interfaces
                            .iter()
                            .map(|one| (one.name.as_str(), one.received_bytes * 8.0))
                            .collect()
                    }),
                    ("out", &|sample| {
                        sample
                            .interfaces
                            .iter()
                            .map(|one| (one.name.as_str(), one.sent_bytes * 8.0))
                            .collect()
                    }),
                ],
            );
            self.device_panel(host, "", Unit::BitsPerSecond, rows)
        });
        self.chart(
            "network",
            "Network interfaces",
            "Everything that the interfaces moved, not only this transfer.",
            panels,
        )
    }

    pub(super) fn memory(&self) -> Option<Figure> {
        let panels = self.each_host(|host| {
            let samples = during(host, self.profile);
            let row = |name: &str, of: fn(&SystemSample) -> u64| -> Row {
                (name.into(), samples.iter().map(|(time, sample)| (*time, of(sample) as f64)).collect())
            };
            let rows: Vec<Row> = [
                row("available", |sample| sample.memory.available),
                row("file cache", |sample| sample.memory.cached),
                row("to be written", |sample| sample.memory.dirty),
                row("swap used", |sample| sample.memory.swap_used),
            ]
            .into_iter()
            .filter(|row| row.1.iter().any(|value| value.1 > 0.0))
            .collect();
            self.device_panel(host, "", Unit::Bytes, rows)
        });
        self.chart(
            "memory",
            "Memory",
            "Memory of each machine. Much that waits to be written means that disks are behind.",
            panels,
        )
    }
}
