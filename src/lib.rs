//! wattune shifts the power of GPU training to the clean hours of the grid: a daemon beside training jobs learns each
//! job's throughput and draw at every power limit, sets the limits by the carbon-intensity forecast, and records
//! energy and emissions. This page is the map of the source; `docs/` is the book for users, and `config/wattune.toml`
//! has every setting.
//!
//! # Entry points
//!
//! * [`cli::Cli`] is the command line; `main` parses it and maps its result to an exit code. `wattune serve` starts the
//!   parts in the order of their dependencies, and stops them in the reverse order.
//! * [`controller::Controller`] is the running daemon: [`Controller::tick`] does all its periodic work, and all other
//!   parts query it through a [`controller::Handle`].
//! * [`plan::plan`] decides: it turns a job's state and a forecast into limits over time with their reasons.
//! * [`profile::Profiler`] learns throughput and power at each limit from the job's own progress.
//! * [`http::Server`] is the API; its answers are the plain data of [`controller::view`].
//! * [`demo::World`] is the same daemon on simulated GPUs and recorded or generated grids, for the demo and tests.
//!
//! # Data flow
//!
//! ```text
//! carbon sources ─▶ providers ─▶ forecast ──────────────────┐
//! jobs (HTTP) ─▶ controller ─▶ profile (just in time) ──────┼─▶ plan ─▶ controller ─▶ gpu: power limits
//! GPUs   ─▶ gpu ─▶ ledger (energy × intensity) ─▶ store ────┴─▶ status, plans, accounts, metrics (HTTP)
//! CPUs, processes ─▶ cpu ─┘
//! ```
//!
//! # Modules, in the order of their dependencies
//!
//! The crate [`wattune_core`] makes all decisions without access to a socket, file, clock or GPU; its page lists its
//! modules. The crate [`wattune_lab`] runs experiments on recorded traces for `wattune simulate` and uses the core
//! only. This crate measures, acts, stores and answers. Each module may use the modules listed above it, and the other
//! crates. `tests/architecture/` enforces this for the sources of all crates. A module marked as *edge* wraps a part of
//! the outside world: carbon sources, GPUs, CPUs or the database.
//!
//! * [`clock`]: the only module that asks the system for the time; the core gets a [`wattune_core::time::Now`]
//! * [`blocking`]: long work on a thread of the async runtime, whose other tasks go on meanwhile
//! * [`telemetry`]: the log
//! * [`files`]: files for this user only, in places that no other user can change; reading regular files
//! * [`providers`], edge: sources behind [`providers::Provider`], and the [`providers::Feed`] that polls them
//! * [`gpu`], edge: GPUs behind [`gpu::GpuDevice`], a thread each, and the [`gpu::journal`] that restores limits
//! * [`cpu`], edge: the energy of CPU packages and memory, and each job's share of CPU time
//! * [`discovery`], edge: the identity of processes that have a GPU open
//! * [`store`], edge: SQLite; rows become domain types here and nowhere else
//! * [`recurring`]: the service for recurring jobs, which runs one transaction of the store for each request
//! * [`controller`]: the loop and all mutable state of a running daemon
//! * [`reports`]: one model of a report, with its renderings for the command line and the API
//! * [`demo`]: the daemon on simulated GPUs, with a clock that it moves itself
//! * [`http`]: the API, its wire types, guards, metrics and page; the one place where errors become statuses
//! * [`config`]: one file of settings, checked once; each module owns the type of its settings and gets them by value
//! * [`cli`]: one file per subcommand
//!
//! # Invariants
//!
//! * The core never sees a socket, a file, a clock or a GPU; the present time is an argument. So the same code runs in
//!   the daemon and in the demo.
//! * The plan is data. It has the reason for each choice, and the controller makes no further decision.
//! * The controller does not know which event woke it, and retries nothing: the next tick is the retry.
//! * A reading comes from the hardware, never from the last write. An absent reading is `None`, never zero.
//! * A GPU is written to only after its original limit is in the journal on disk. wattune never overwrites a limit that
//!   an external writer has set meanwhile.
//! * The ledger holds energy in integer millijoules, written once. Emissions are computed on demand: energy times the
//!   best known intensity.
//! * A handler of the API holds no state; it sends the controller one query, which is answered between two ticks.
//! * A carbon source that fails is reported as stale, with the time since when; the failure does not propagate as an
//!   error.
//!
//! # One tick
//!
//! A timer or a new response from a carbon source starts [`Controller::tick`].
//!
//! 1. **Observe.** Each GPU's thread has read its hardware ([`gpu::Observation`]); the controller passes the limit in
//!    force and the draw to each job's [`profile::Profiler`].
//! 2. **Update the signal.** The controller stores a new [`providers::FeedState`], and [`forecast::Model::fit`] learns
//!    from past forecasts and actual values how to correct the source's forecast and how much weight the forecast gets.
//!    A job ends if it has not reported for longer than its lease (longest silence before a job counts as dead).
//! 3. **Account.** When an interval is due, [`ledger::OpenInterval`] closes it and attributes its energy by the
//!    device's [`ledger::AttributionRule`]: to the job that held the GPU, or to jobs by the CPU time of their
//!    processes. The [`store::Store`] records the interval with the counter's value at its end; while the database is
//!    unavailable, the interval waits in memory. At each full hour, the block of recorded intervals is closed and
//!    compared with the energy counters, and the emissions of its hours are computed. When new actual values of carbon
//!    intensity arrive, the emissions of the affected hours are computed again, as a new version of these hours that
//!    replaces the earlier one.
//! 4. **Plan** each job that has a reason to be planned again: a new forecast, a finished sweep (profiling run through
//!    the power limits), progress off the plan. [`forecast::Model::outlook`] makes slots (time steps) without gaps,
//!    [`forecast::Model::shrink_by_skill`] moves the slots' intensities towards their mean, the further the less skill
//!    such outlooks had recently, and [`plan::plan`] returns a [`plan::Plan`].
//! 5. **Compare and act.** For each GPU, the wanted limit (a manual override's, otherwise its job's, otherwise the
//!    original one) is compared with the GPU's reading. If they differ, [`gpu::journal::Journal::record_write`] comes
//!    first, then the write, handed to the GPU's thread; its outcome shows at the next tick.
//!
//! [`Controller::tick`]: controller::Controller::tick
//! [`forecast::Model::fit`]: wattune_core::forecast::Model::fit
//! [`forecast::Model::shrink_by_skill`]: wattune_core::forecast::Model::shrink_by_skill
//! [`forecast::Model::outlook`]: wattune_core::forecast::Model::outlook
//! [`ledger::OpenInterval`]: wattune_core::ledger::OpenInterval
//! [`ledger::AttributionRule`]: wattune_core::ledger::AttributionRule
//! [`plan::Plan`]: wattune_core::plan::Plan
//! [`plan::plan`]: wattune_core::plan::plan
//! [`profile::Profiler`]: wattune_core::profile::Profiler

pub mod blocking;
pub mod cli;
pub mod clock;
pub mod config;
pub mod controller;
pub mod cpu;
pub mod demo;
pub mod discovery;
pub mod files;
pub mod gpu;
pub mod http;
pub mod providers;
pub mod recurring;
pub mod reports;
pub mod store;
pub mod telemetry;
