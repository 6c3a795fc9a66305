//! A thread that calls a function at a fixed interval.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub(super) struct Sampler<T> {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<T>>,
    /// The final state, once the thread has stopped.
    state: Option<T>,
}

impl<T: Send + 'static> Sampler<T> {
    /// Calls `look` once an interval, and a last time at the end.
    pub(super) fn start(
        name: &str,
        interval: Duration,
        mut state: T,
        look: impl Fn(&mut T) + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        let run = move || {
            let mut next = Instant::now() + interval;
            loop {
                let left = next.saturating_duration_since(Instant::now());
                let ended = stopped.recv_timeout(left) != Err(RecvTimeoutError::Timeout);
                look(&mut state);
                if ended {
                    return state;
                }
                // Missed intervals are skipped.
                while next <= Instant::now() {
                    next += interval;
                }
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { stop: Some(stop), thread: Some(thread), state: None })
    }

    /// Samples a last time and stops the thread.
    pub(super) fn stop(&mut self) {
        self.end();
    }

    /// Stops the thread after a last sample, unless it has stopped, and returns the state; `None`
    /// if the thread panicked.
    pub(super) fn finish(mut self) -> Option<T> {
        self.end();
        self.state.take()
    }
}

impl<T> Sampler<T> {
    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            self.state = thread.join().ok();
        }
    }
}

impl<T> Drop for Sampler<T> {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sampler_when_stopped_samples_once_more() {
        let (told, heard) = mpsc::channel();
        let sampler = Sampler::start("test", Duration::from_millis(1), 0_u32, move |count| {
            *count += 1;
            // At the end the receiver is gone.
            let _ = told.send(*count);
        })
        .unwrap();
        while heard.recv().unwrap() < 3 {}
        assert!(sampler.finish().unwrap() >= 4);
        let sampler = Sampler::start("test", Duration::from_secs(1000), 0, |count| *count += 1).unwrap();
        assert_eq!(sampler.finish(), Some(1));
        let mut sampler = Sampler::start("test", Duration::from_secs(1000), 0, |count| *count += 1).unwrap();
        sampler.stop();
        assert_eq!(sampler.finish(), Some(1));
    }
}
