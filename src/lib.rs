//! wattune makes GPU training follow the clean hours of the grid: a daemon beside training jobs learns what each job
//! does at every power limit, follows the carbon-intensity forecast with the limits, and keeps the books of energy and
//! carbon. This page is the map for readers of the source; `docs/` is the book for everybody, and `config/wattune.toml`
//! has every setting.
//!
//! # Ways in
//!
//! * [`cli::Cli`] is the command line; `main` parses it and maps its end to an exit code. `wattune serve` puts the
//!   parts together in the order in which they depend on one another, and takes them down in the other.
//! * [`controller::Controller`] is the running daemon: [`Controller::tick`] is all it does by itself, and a
//!   [`controller::Handle`] is how everybody else asks it something.
//! * [`plan::plan`] is the decision: a job's state and a forecast in, limits over time with their reasons out.
//! * [`profile::Profiler`] learns throughput and power at each limit from the job's own progress.
//! * [`http::Server`] is the API; its answers are the plain data of [`controller::view`].
//! * [`demo::World`] is the same daemon on simulated GPUs and recorded or generated grids, for `wattune demo` and tests.
//!
//! # What flows through it
//!
//! ```text
//! carbon sources ─▶ providers ─▶ forecast ──────────────────┐
//! jobs (HTTP) ─▶ controller ─▶ profile (just in time) ──────┼─▶ plan ─▶ controller ─▶ gpu: power limits
//! boards ─▶ gpu ─▶ ledger (energy × intensity) ─▶ store ────┴─▶ status, plans, accounts, metrics (HTTP)
//! CPUs, processes ─▶ cpu ─┘
//! ```
//!
//! # The rooms, in the order in which they may depend on one another
//!
//! What decides is the crate [`wattune_core`], which sees no socket, no file, no clock and no GPU; its page has its rooms.
//! The crate [`wattune_lab`] has the experiments on recorded traces behind `wattune simulate`, and uses the core only. This
//! crate is the rest: what measures, acts, stores and answers. Each room may use those above it, and all of the other
//! crates. `tests/architecture/` reads the sources of all crates and fails where that is broken.
//!
//! * [`clock`]: the only place that asks the system for the time; the core gets [`wattune_core::time::Now`] as an argument
//! * [`telemetry`]: the log
//! * [`files`]: files for this user alone, at places that nobody else can exchange; reading files that have an end
//! * [`providers`], edge: sources behind [`providers::Provider`], and the [`providers::Feed`] that polls them
//! * [`gpu`], edge: boards behind [`gpu::GpuDevice`], a thread each, and the [`gpu::journal`] that gives limits back
//! * [`cpu`], edge: what CPU packages and memory use, and how much of their time each job's processes have
//! * [`store`], edge: SQLite; rows become domain types here and nowhere else
//! * [`recurring`]: recurring jobs as a service, a transaction of the store for each request
//! * [`controller`]: the loop and all mutable state of a running daemon
//! * [`demo`]: the daemon on simulated GPUs, with a clock that it moves itself
//! * [`http`]: the API, its wire types, guards, metrics and page; the one place where errors become statuses
//! * [`config`]: one file of settings, checked once; each room owns its own settings type and gets it by value
//! * [`cli`]: one file per subcommand
//!
//! # What the rooms do not know
//!
//! * The core never sees a socket, a file, a clock or a GPU. The same code runs in the daemon and in the demo; `now` is an
//!   argument.
//! * The plan is data. It holds the reason for each choice, and the controller has no decision left to take.
//! * The controller is never told what changed and retries nothing: the next tick is the retry.
//! * A reading is what the hardware says, never what was written last. Absent is `None`, never zero.
//! * A board is written to only after the limit found there stands in the journal on disk. A limit that somebody else
//!   set meanwhile is theirs.
//! * The books hold energy, in integer millijoules, written once. They hold no grams: those are energy times the best
//!   intensity known, worked out when asked for.
//! * A handler of the API holds no state; it asks the controller one question between two ticks.
//! * A source that fails is a state ("stale since …"), not an error that travels.
//!
//! # One tick, from end to end
//!
//! [`Controller::tick`] is activated by a timer, or by a new answer of the feed.
//!
//! 1. **Observe.** Each board's thread has read its hardware meanwhile ([`gpu::Observation`]); the controller looks at
//!    the newest reading, and tells each job's [`profile::Profiler`] which limit is in force and what was drawn.
//! 2. **Take the signal.** A new [`providers::FeedState`] is stored, and [`forecast::Model::fit`] learns from past
//!    forecasts and outcomes how to correct it and how far to follow it. Jobs that were silent for longer than their
//!    lease are ended.
//! 3. **Account.** Where an interval is due, [`ledger::OpenInterval`] closes it by the device's [`ledger::Rule`] (whoever
//!    held the board, or whose processes had the CPU time), and it goes to the [`store::Store`] with the counter up to
//!    which it reaches. If the database is away, it waits. At full hours the block of intervals is closed against the
//!    counters, and its hours are settled; hours of which the grid's sources tell something new are settled again, as a
//!    new version.
//! 4. **Plan**, for jobs that have a reason to: a new forecast, a finished sweep, progress off the plan.
//!    [`forecast::Model::outlook`] makes slots without gaps, [`forecast::Model::shrink_by_skill`] draws them to their mean by what
//!    such outlooks lately lacked in skill, and [`plan::plan`] answers with a [`plan::Plan`].
//! 5. **Compare and act.** For each board the wanted limit (a manual override's, else its job's, else the one found) is
//!    compared with what the board says. If they differ, [`gpu::journal::Journal::record_write`] comes first, then the
//!    write, handed to the board's thread; its outcome is seen at the next tick.
//!
//! [`Controller::tick`]: controller::Controller::tick
//! [`forecast::Model::fit`]: wattune_core::forecast::Model::fit
//! [`forecast::Model::shrink_by_skill`]: wattune_core::forecast::Model::shrink_by_skill
//! [`forecast::Model::outlook`]: wattune_core::forecast::Model::outlook
//! [`ledger::OpenInterval`]: wattune_core::ledger::OpenInterval
//! [`ledger::Rule`]: wattune_core::ledger::Rule
//! [`plan::Plan`]: wattune_core::plan::Plan
//! [`plan::plan`]: wattune_core::plan::plan
//! [`profile::Profiler`]: wattune_core::profile::Profiler

pub mod cli;
pub mod clock;
pub mod config;
pub mod controller;
pub mod cpu;
pub mod demo;
pub mod files;
pub mod gpu;
pub mod http;
pub mod providers;
pub mod recurring;
pub mod store;
pub mod telemetry;
