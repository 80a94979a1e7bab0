// Recurring jobs: the cost estimate of each batch size.

const STAGES = {
  exploring: "trying batch sizes",
  exploiting: "using the best batch sizes",
  none_converges: "no batch size reached its target",
};

/** Draws mean and standard deviation of a batch size on a common scale. */
const estimateBar = (arm, most) => {
  if (!isNumber(arm.mean_cost_j)) return null;
  const x = (cost) => Math.max(0, Math.min(100, (100 * cost) / most));
  const deviation = arm.deviation_j ?? 0;
  return s("svg", { class: "belief", viewBox: "-1 0 102 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    s("line", { class: "axis", x1: 0, x2: 100, y1: 5, y2: 5 }),
    s("rect", { class: "spread", x: x(arm.mean_cost_j - deviation), y: 2, height: 6,
      width: Math.max(0.5, x(arm.mean_cost_j + deviation) - x(arm.mean_cost_j - deviation)) }),
    s("line", { class: "mean", x1: x(arm.mean_cost_j), x2: x(arm.mean_cost_j), y1: 0, y2: 10 }));
};

const estimate = (arm, most) => {
  if (!isNumber(arm.mean_cost_j)) return absent("not tried yet");
  const spread = isNumber(arm.deviation_j) ? ` ± ${energyText(arm.deviation_j)}` : "";
  const carbon = isNumber(arm.mean_cost_g) ? `, ${gramsText(arm.mean_cost_g)}` : "";
  return [h("data", { value: arm.mean_cost_j }, energyText(arm.mean_cost_j)), `${spread}${carbon}`, estimateBar(arm, most)];
};

const recurringCard = (job) => {
  const most = Math.max(...job.arms.map((arm) => (arm.mean_cost_j ?? 0) + (arm.deviation_j ?? 0)), 1);
  const rows = job.arms.map((arm) => ({
    key: String(arm.batch_size),
    head: [number(arm.batch_size), arm.favourite && h("span", { class: "state planned" }, "best so far")],
    cells: [estimate(arm, most), [h("data", { value: arm.runs }, number(arm.runs)), arm.runs > 0 && h("span", { class: "muted" }, `, ${number(arm.reached)} reached the target`)]],
  }));
  const title = `recurring-${encodeURIComponent(job.name)}`;
  return h("article", { class: "job", "data-key": job.name, "aria-labelledby": title },
    h("header", {},
      h("h3", { id: title }, job.name),
      h("span", { class: "state" }, STAGES[job.stage] ?? words(job.stage)),
      h("span", { class: "muted" }, `${plural(job.trials, "trial")}, ${number(job.running)} running`)),
    table(`Batch sizes of ${job.name}`, ["Batch size", "Expected cost of a run (mean ± standard deviation)", "Runs"], rows));
};

const showRecurring = (jobs) =>
  show("recurring", jobs.length > 0 ? jobs.map(recurringCard)
    : h("p", { class: "absent" }, "None. Register a job that is trained repeatedly to have its batch size chosen: PUT /v1/recurring/{name}."));
