//! Selects the transfer that carries out a job.

use crate::work::{Job, Route};
use crate::worker::Worker;
use crate::{get, local_copy, put, third_party, through};

/// Carries out a job, and the jobs of the same route that follow it.
pub(crate) fn carry_out(worker: &Worker<'_>, job: Job) {
    match job.route() {
        Route::Get(endpoint) => get::run(worker, &endpoint, job),
        Route::Put(endpoint) => put::run(worker, &endpoint, job),
        Route::Third(source, destination) if worker.ctx.options().data.through_here => {
            through::run(worker, &source, &destination, job);
        }
        Route::Third(source, destination) => third_party::run(worker, &source, &destination, job),
        Route::Local => local_copy::run(worker, job),
    }
}
