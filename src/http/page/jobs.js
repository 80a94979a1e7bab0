// Jobs: the phase, reason and results of each.

const PHASES = {
  waiting: "waiting",
  held: "waiting for its start",
  suspended: "suspended",
  profiling: "being profiled",
  planned: "following its plan",
  paused: "asked to pause",
  observing: "observed only",
};

const SOURCES = {
  log_line: "lines that it prints",
  optimizer_hook: "the steps of a PyTorch optimizer",
  keras: "Keras",
  lightning: "Lightning",
  trainer_status: "the Hugging Face Trainer",
  python_client: "the Python package wattune",
  http: "its own requests",
};

/** Returns a figure with the bounds of its interval; without an interval, the figure is both bounds. */
const intervalOf = (figure) => {
  if (isNumber(figure)) return { low: figure, mean: figure, high: figure };
  if (!isNumber(figure?.low) || !isNumber(figure?.high)) return null;
  return { low: figure.low, mean: figure.mean ?? (figure.low + figure.high) / 2, high: figure.high };
};

/** The four effects whose sum is the saving of a job that waited or was stopped. */
const EFFECTS = [["start", "start_effect_pct"], ["stops", "suspension_effect_pct"], ["energy", "energy_effect_pct"], ["timing", "timing_effect_pct"]];

/**
 * Returns the saving in a job's account: `{pct, g, reference, at, parts}` with `pct` and `g` from `intervalOf`, and with `parts`,
 * the name and percentage of each effect, if the job waited or was stopped; or `{why}` where there is no honest estimate.
 */
const savingOf = (account) => {
  if (!account) return { why: "its account is not loaded yet" };
  const estimate = account.savings?.against_original ?? account.against_max;
  if (!estimate) return { why: "no comparison yet" };
  const pct = intervalOf(estimate.carbon_reduction_pct);
  if (!pct) return { why: estimate.unknown ?? "no reason given" };
  const reference = estimate.carbon_at_reference_g ?? estimate.carbon_at_max_g;
  const share = (percent) => (percent / 100) * reference;
  const g = intervalOf(estimate.carbon_reduction_g) ?? { low: share(pct.low), mean: share(pct.mean), high: share(pct.high) };
  const parts = EFFECTS.map(([name, key]) => [name, intervalOf(estimate[key])?.mean]);
  const waited = parts.every(([, mean]) => isNumber(mean));
  const limit = account.savings ? "the original limit" : "the maximum usable limit";
  return { pct, g, reference, at: waited ? `${limit}, started at once` : limit, parts: waited ? parts : null };
};

const signed = (text) => text.replace("-", "−");

/** Returns the bounds in brackets if they differ. */
const bounds = ({ low, high }, text) => (text(low) === text(high) ? null : ` (${signed(text(low))} to ${signed(text(high))})`);

const savingShown = (account) => {
  const { pct, reference, at, parts, why } = savingOf(account);
  if (!pct) return [absent(), h("span", { class: "muted" }, ` (${why})`)];
  return h("span", {}, h("data", { value: pct.mean }, `${signed(number(pct.mean, 1))} %`), bounds(pct, (value) => number(value, 1)),
    isNumber(reference) && h("span", { class: "muted" }, ` of ${gramsText(reference)} at ${at}`),
    parts && h("span", { class: "muted", title: "These four effects add up to the saving." },
      `: ${parts.map(([name, mean]) => `${name} ${signed(number(mean, 1))}`).join(", ")}`));
};

const fact = (name, ...value) => h("div", { class: "fact" }, h("dt", {}, name), h("dd", {}, value));

const gpuNames = (job, status) => {
  const indexes = job.gpus.map((uuid) => status.gpus.find((gpu) => gpu.uuid === uuid)?.index ?? "?");
  return `GPU ${indexes.join(", ")}`;
};

const progressOf = (job) => {
  if (!isNumber(job.samples)) return h("p", { class: "absent" }, "No progress was reported yet.");
  const done = `${new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format(job.samples)} samples`;
  if (!isNumber(job.total_samples)) return h("p", { class: "muted" }, `${done}, of an unknown total`);
  const share = Math.min(1, job.samples / job.total_samples);
  return h("div", { class: "progress" },
    h("progress", { max: job.total_samples, value: job.samples, "aria-label": `Progress of ${job.name}` }),
    h("span", {}, h("data", { value: job.samples, title: done }, percentText(100 * share))));
};

const allowed = (objective, reference) => {
  const parts = [];
  if (isNumber(objective.max_slowdown)) parts.push(`${percentText(100 * objective.max_slowdown)} allowed in all`);
  if (objective.deadline) parts.push(["due ", moment(objective.deadline, reference)]);
  if (isNumber(objective.carbon_budget_g)) parts.push(`budget ${gramsText(objective.carbon_budget_g)}`);
  return parts.length === 0 ? null : h("span", { class: "muted" }, " (", parts.flatMap((part, i) => (i ? [", ", part] : [part])), ")");
};

const limitOf = (job) => {
  const limits = [...new Set(job.power_limits_w)];
  const shown = limits.length === 0 || limits.every((w) => w === null) ? absent("none wanted")
    : limits.flatMap((w, i) => [i ? " / " : null, watts(w)]);
  return [shown, isNumber(job.clock_limit_mhz) && `, clocks at ${number(job.clock_limit_mhz)} MHz`];
};

/** Returns what is known of the start of a job that asked to wait. */
const startFacts = ({ start, phase }, now) => {
  if (!start) return null;
  const saving = [quantity(start.expected_saving_pct, (pct) => `${signed(number(pct, 1))} %`),
    isNumber(start.saving_low_pct) && bounds({ low: start.saving_low_pct, high: start.saving_high_pct }, (pct) => number(pct, 0))];
  if (phase === "held") {
    return [fact("Starts", moment(start.start_at, now), h("span", { class: "muted" }, " (at the latest ", moment(start.latest_start, now), ")")),
      fact("Expected saving by waiting", saving)];
  }
  return [fact("Waited for its start", moment(start.asked_at, now), " to ", moment(start.begun_at ?? start.start_at, now)),
    fact("Expected saving by waiting", saving)];
};

const jobCard = (job, status, account) => {
  const title = `job-${job.job_id}`;
  return h("article", { class: "job", "data-key": job.job_id, "aria-labelledby": title, "data-job": job.job_id },
    h("header", {},
      h("h3", { id: title }, job.name),
      h("span", { class: `state ${job.phase}` }, PHASES[job.phase] ?? job.phase),
      h("span", { class: "muted" }, [gpuNames(job, status), isNumber(job.batch_size) && `batch size ${number(job.batch_size)}`,
        ...Object.entries(job.tags).map(([name, value]) => `${name}: ${value}`)].filter(Boolean).join(" · "))),
    progressOf(job),
    h("p", { class: "reason" }, sentence(job.reason), job.resume_at && [" (resumes at ", moment(job.resume_at, status.now), ")"]),
    h("dl", { class: "facts" },
      startFacts(job, status.now),
      fact("Power limit", limitOf(job)),
      fact("Slowdown so far", quantity(job.slowdown, slowdownText), allowed(job.objective, status.now)),
      fact("Energy", energy(job.energy_j)),
      fact("Emissions", grams(job.carbon_g)),
      fact("Carbon saved", savingShown(account)),
      fact("Expected end", moment(job.expected_end, status.now)),
      fact("Progress from", SOURCES[job.progress_source] ?? job.progress_source ?? absent())),
    job.warnings.length > 0 && h("ul", { class: "warnings" }, job.warnings.map((text) => h("li", {}, sentence(text)))));
};

const noJobs = () => {
  const body = '{"name": "resnet50", "gpus": [0], "batch_size": 256,\n  "work": {"total_samples": 80000}, "objective": {"max_slowdown": 0.03}, "lease_s": 60}';
  const call = `curl -s ${location.origin}/v1/jobs -H 'content-type: application/json' \\\n  -d '${body}'`;
  return [
    h("p", { class: "absent" }, "No job is registered. A training job registers itself before it starts:"),
    h("pre", {}, h("code", {}, call)),
    h("p", { class: "muted" }, "Then it reports its progress about once a second to /v1/jobs/{id}/progress, and ends with DELETE."),
  ];
};

/** Shows the number of jobs that events leave out. */
const moreJobs = ({ jobs_left_out: more }) =>
  more > 0 && h("p", { class: "muted", "data-key": "more" }, `${number(more)} more ${more === 1 ? "job is" : "jobs are"} not shown here; /v1/jobs lists all.`);

const showJobs = (status, details) =>
  show("jobs", status.jobs.length > 0 ? [...status.jobs.map((job) => jobCard(job, status, details.accounts[job.job_id])), moreJobs(status)] : noJobs());

const showEnded = (status, details) => {
  const row = (job) => {
    const account = details.accounts[job.job_id];
    return {
      key: job.job_id,
      head: job.name,
      cells: [moment(job.ended_at, status.now), sentence(job.end_reason ?? ""), account ? energy(account.energy_j) : absent(),
        account ? grams(account.carbon_g) : absent(), savingShown(account)],
    };
  };
  const heads = ["Job", "Ended", "Why", "Energy", "Emissions", "Carbon saved"];
  show("ended", details.ended.length > 0 && [h("h3", {}, "Ended recently"), table("Recently ended jobs", heads, details.ended.map(row))]);
};
