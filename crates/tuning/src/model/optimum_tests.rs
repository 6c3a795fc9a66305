#![allow(clippy::unwrap_used)]
use super::super::Regime;
use super::*;

fn path(bandwidth: f64, rtt: f64, window: f64) -> Path {
    Path::new(bandwidth, rtt, window).unwrap()
}

#[test]
fn x_star_solves_its_equation() {
    let mut window = 1e-3;
    while window < 1e12 {
        let x = x_star(window);
        assert!(x >= window && (delivered(x) / window - 1.0).abs() < 1e-9, "{window} {x}");
        window *= 1.07;
    }
    assert!((x_star(2.7) - x_star(2.7 - 1e-12)).abs() < 1e-9);
    assert!((x_star(50.0) - x_star_series(50.0)).abs() < 1e-5);
}

/// Compares floor and ceiling of N* with every number of streams.
#[test]
fn optimum_is_at_least_as_good_as_any_other_number() {
    let sizes = [0.7, 2.7, 4.0, 10.92, 43.69, 200.0];
    for bandwidth in [0.3, 1.0, 8.3, 12.5, 83.3] {
        for rtt in [1.0, 7.0, 20.0, 61.5, 100.0] {
            for window in sizes {
                for loss in [0.0, 1e-4, 0.01, 0.08, 0.3] {
                    let path = path(bandwidth, rtt, window).with_background_loss(loss).unwrap();
                    let found = optimum(&path, 4000).unwrap();
                    let most = (2.0 * found.streams_real) as u64 + 20;
                    let best = (1..=most.min(4000))
                        .map(|streams| (streams, goodput_of(&path, streams as f64).goodput))
                        .reduce(|best, next| if next.1 > best.1 { next } else { best })
                        .unwrap();
                    // At the knee of a path with much loss both branches are equal except for
                    // rounding.
                    let same = found.steady.goodput >= best.1 * (1.0 - 1e-12);
                    assert!(found.streams == best.0 || loss > 0.0 && same, "{best:?} {path:?} {found:?}");
                }
            }
        }
    }
}

#[test]
fn optimum_reports_its_reason() {
    assert_eq!(optimum(&path(1.0, 1.0, 10.0), 100).unwrap().reason, Reason::OneIsEnough);
    assert_eq!(optimum(&path(8.3, 100.0, 43.69), 100).unwrap().reason, Reason::FillsTheLink);
    let limited = optimum(&path(8.3, 100.0, 43.69), 10).unwrap();
    assert_eq!((limited.streams, limited.reason), (10, Reason::Limit));
    let lossy = path(8.3, 100.0, 43.69).with_background_loss(0.01).unwrap();
    let found = optimum(&lossy, 100).unwrap();
    assert_eq!((found.streams, found.reason), (76, Reason::FillsTheLinkDespiteLoss));
    let huge = optimum(&path(1e9, 1e6, 1e-3), MAX_STREAMS).unwrap();
    assert_eq!((huge.streams, huge.reason), (MAX_STREAMS, Reason::Limit));
    for most in [0, MAX_STREAMS + 1] {
        assert!(optimum(&path(1.0, 1.0, 1.0), most).is_err());
    }
}

#[test]
fn joint_with_large_window_uses_one_stream() {
    let limits = Limits { window: 1e6, memory: None, streams: 64 };
    let found = joint(&path(83.3, 100.0, 1.0), &limits).unwrap();
    assert_eq!((found.streams, found.memory_binds), (1, false));
    assert!((found.window - 8330.0).abs() < 1e-9);
    let limits = Limits { window: 100.0, ..limits };
    assert_eq!(joint(&path(83.3, 100.0, 1.0), &Limits { streams: 128, ..limits }).unwrap().streams, 84);
}

#[test]
fn joint_with_little_memory_limits_window() {
    let limits = Limits { window: 100.0, memory: Some(2000.0), streams: 128 };
    let found = joint(&path(83.3, 100.0, 1.0), &limits).unwrap();
    assert!(found.memory_binds && found.streams as f64 * found.window <= 2000.0 * (1.0 + 1e-12), "{found:?}");
    assert_eq!(found.steady.regime, Regime::Window);
    assert!((found.steady.goodput - 20.0).abs() < 1e-9);
}

/// Shows the errors of the printed equation in numbers.
#[test]
fn printed_eq13_is_not_the_optimum() {
    let value = |bandwidth_delay: f64| printed_eq13(&path(bandwidth_delay, 1.0, 1.0));
    for product in [1.0001, 1.5, 3.0, 19.0, 1e4] {
        assert!(value(product).unwrap() < 0.0, "{product}");
    }
    for product in [0.78, 0.9, 0.999, 2.0 / 3.0] {
        assert!(!value(product).is_some_and(|value| value.abs() < 1e12), "{product}");
    }
    for product in [0.001, 0.1, 0.5, 0.66] {
        let best = product / x_star(1.0);
        assert!(value(product).unwrap() > best, "{product}");
    }
    // It solves W/R = B(1-p(N)), with Eq (7).
    let (b, r, w, n) = (1.0, 1.0, 10.922_666_7, printed_eq13(&path(1.0, 1.0, 10.922_666_7)).unwrap());
    let x = b * r / n;
    let loss: f64 = 1.0 / (2.0 * x * x / 3.0 + 2.0 * x - 2.0);
    assert!((w / r / (b * (1.0 - loss)) - 1.0).abs() < 1e-6, "{n}");
}

#[test]
fn path_with_unusable_parameters_fails() {
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300] {
        for (bandwidth, rtt, window) in [(bad, 1.0, 1.0), (1.0, bad, 1.0), (1.0, 1.0, bad)] {
            assert!(Path::new(bandwidth, rtt, window).is_err(), "{bandwidth} {rtt} {window}");
        }
    }
    for loss in [1.0, 2.0, -0.1, f64::NAN] {
        assert!(path(1.0, 1.0, 1.0).with_background_loss(loss).is_err(), "{loss}");
    }
    let error = Path::new(1.0, 0.0, 1.0).unwrap_err().to_string();
    assert_eq!(error, "RTT is 0 ms: expected 1e-5 to 1000000 ms");
}
