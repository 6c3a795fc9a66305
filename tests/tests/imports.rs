//! Imports of a crate go in one direction, from layer to layer.

#![allow(clippy::unwrap_used)]
use std::path::Path;

use ropewalk_tests::imports::Imports;

/// The modules of the largest cycle of imports that each crate may have. The numbers only go down.
const LARGEST_CYCLES: [(&str, usize); 7] = [
    ("client", 1),
    ("server", 1),
    ("engine", 1),
    ("layers", 1),
    ("storage", 1),
    ("transport", 1),
    ("tuning", 2),
];

#[test]
fn import_cycles_of_each_crate_stay_within_their_limit() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("crates");
    for (name, most) in LARGEST_CYCLES {
        let cycles = Imports::of(&crates.join(name).join("src")).unwrap().cycles();
        let largest = cycles.first().map_or(1, |cycle| cycle.len());
        assert!(largest <= most, "{name}: a cycle of {largest} modules, at most {most}: {cycles:?}");
    }
}

/// The lowest layer of a crate, which imports nothing of the layers above.
const LOWEST: [(&str, &str); 1] = [("client", "model")];

#[test]
fn lowest_layer_of_each_crate_imports_nothing_above() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("crates");
    for (name, layer) in LOWEST {
        let upward = Imports::of(&crates.join(name).join("src")).unwrap().upward(layer);
        assert!(upward.is_empty(), "{name}: {layer} imports {upward:?}");
    }
}
