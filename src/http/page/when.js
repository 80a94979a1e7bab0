// The best starts of jobs that could wait.

/** Durations in hours for which the page shows the best start within a day. */
const START_DURATIONS_H = [1, 4, 8, 24];

const startPath = (hours) => `/v1/when?duration_s=${hours * 3600}&within_s=86400`;

const startRow = (hours, advice, now) => ({
  key: String(hours),
  head: [`${hours} h`],
  cells: [
    advice.starts_at_once ? "now" : [moment(advice.start, now), " to ", moment(advice.best.end, now)],
    advice.starts_at_once ? absent("none") : [quantity(advice.expected_saving_pct, (pct) => `${signed(number(pct, 1))} %`),
      bounds({ low: advice.saving_low_pct, high: advice.saving_high_pct }, (pct) => number(pct, 0))],
    advice.starts_at_once ? absent("none") : quantity(advice.loss_probability, (chance) => percentText(100 * chance, 0)),
    sentence(advice.advice),
  ],
});

/** Shows the best starts of jobs of some durations. */
const showStarts = (status, starts) => {
  const known = START_DURATIONS_H.filter((hours) => starts[hours] && starts[hours].reason !== "nothing_known");
  show("starts", known.length > 0
    ? table("Best starts within 24 hours", ["Job of", "Best window", "Expected saving", "Risk of a loss", "Reason"],
      known.map((hours) => startRow(hours, starts[hours], status.now)))
    : h("p", { class: "absent" }, "No forecast is known, so no time is known to be cleaner than now."));
};
