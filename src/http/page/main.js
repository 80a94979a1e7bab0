// The page's state, and when each part is read and rendered.

/** The interval for reading what events do not contain, in the daemon's time, and its minimum in the viewer's time. */
const REREAD_S = 120;
const REREAD_MIN_MS = 3000;
const ENDED_SHOWN = 5;

const THEME = "wattune-theme";
const THEMES = ["system", "light", "dark"];

const page = {
  status: null,
  link: { state: "connecting", since: new Date(), why: "", problem: null },
  details: { past: [], ahead: [], limits: {}, plans: {}, starts: {}, accounts: {}, ended: [] },
  troubles: [],
  reading: false,
  readAt: null,
};

const timeline = makeTimeline();

const showTheme = (theme) => {
  if (theme === "system") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", theme);
  byId("theme").textContent = `Theme: ${theme}`;
  timeline.repaint();
};

const setUpTheme = () => {
  let theme = lasting.getItem(THEME);
  if (!THEMES.includes(theme)) theme = "system";
  showTheme(theme);
  byId("theme").addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    lasting.setItem(THEME, theme);
    showTheme(theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => timeline.repaint());
};

/** Reads all of these at once; a failed one is reported and keeps its previous value. */
const readAll = async (wanted, before) => {
  const troubles = [];
  const entries = await Promise.all(Object.entries(wanted).map(async ([key, path]) => {
    try {
      return [key, await read(path)];
    } catch (error) {
      troubles.push(`${path} could not be read: ${error.message}.`);
      return [key, before[key]];
    }
  }));
  return [Object.fromEntries(entries.filter(([, value]) => value !== undefined)), troubles];
};

const keyed = (list, key, path) => Object.fromEntries(list.map((one) => [one[key], path(encodeURIComponent(one[key]))]));

/** Reads what events do not contain, and shows each part as soon as it arrives. */
const readDetails = async (status) => {
  const { details } = page;
  const troubles = [];
  const take = async (wanted, before, isQuiet) => {
    const [found, failed] = await readAll(wanted, before);
    if (!isQuiet) troubles.push(...failed);
    return found;
  };
  const grid = await take({ past: "/v1/carbon/history?hours=24", ahead: "/v1/carbon/forecast" }, details);
  details.limits = await take(keyed(status.gpus, "uuid", (id) => `/v1/gpus/${id}/history`), details.limits);
  // A job that ended meanwhile has no plan; that is no error.
  details.plans = await take(keyed(status.jobs, "job_id", (id) => `/v1/jobs/${id}/plan`), details.plans, true);
  Object.assign(details, grid);
  timeline.draw(page.status, details);
  const paths = Object.fromEntries(START_DURATIONS_H.map((hours) => [hours, startPath(hours)]));
  details.starts = await take(paths, details.starts);
  showStarts(page.status, details.starts);
  const lists = await take({ ended: `/v1/jobs?state=ended&limit=${ENDED_SHOWN}`, recurring: "/v1/recurring?limit=20" },
    { ended: details.ended, recurring: [] });
  const recurring = await take(keyed(lists.recurring, "name", (name) => `/v1/recurring/${name}`), {});
  showRecurring(Object.values(recurring));
  details.ended = lists.ended;
  const jobs = [...status.jobs, ...details.ended];
  details.accounts = await take(keyed(jobs, "job_id", (id) => `/v1/jobs/${id}/emissions`), details.accounts);
  showJobs(page.status, details);
  showEnded(page.status, details);
  showTiles(page.status, details);
  page.troubles = troubles;
  showNotices(page.link, page.status, troubles);
};

const isDue = (status) => {
  if (page.reading) return false;
  if (!page.readAt) return true;
  if (performance.now() - page.readAt.wall < REREAD_MIN_MS) return false;
  const old = Math.abs(seconds(status.now) - page.readAt.daemon) >= REREAD_S;
  return old || page.readAt.shape !== shapeOf(status);
};

/** The parts of a status whose change requires reading plans and limits again. */
const shapeOf = (status) => JSON.stringify([status.started_at, status.carbon.basis, status.carbon.fetched_at,
  status.jobs.map((job) => [job.job_id, job.phase, job.reason]), status.gpus.map((gpu) => [gpu.state, gpu.power_limit_enforced_w])]);

const rereadIfDue = async (status) => {
  if (!isDue(status)) return;
  page.reading = true;
  try {
    await readDetails(status);
  } finally {
    page.readAt = { wall: performance.now(), daemon: seconds(status.now), shape: shapeOf(status) };
    page.reading = false;
  }
  document.body.setAttribute("data-read", status.now);
};

/** Describes a change for screen readers. */
const describeChanges = (before, now) => {
  if (!before) return "";
  const changes = [];
  // A job that is absent from a list that leaves out jobs may be registered or running all the same.
  const whole = !(before.jobs_left_out > 0 || now.jobs_left_out > 0);
  if (before.carbon.freshness !== now.carbon.freshness) changes.push(`The signal is now ${now.carbon.freshness === "none" ? "gone" : now.carbon.freshness}.`);
  for (const job of now.jobs) {
    const old = before.jobs.find((one) => one.job_id === job.job_id);
    if (!old) {
      if (whole) changes.push(`Job ${job.name} was registered.`);
    } else if (old.phase !== job.phase) changes.push(`Job ${job.name} is ${PHASES[job.phase] ?? job.phase}.`);
  }
  for (const job of before.jobs) {
    if (whole && !now.jobs.some((one) => one.job_id === job.job_id)) changes.push(`Job ${job.name} has ended.`);
  }
  for (const gpu of now.gpus) {
    const old = before.gpus.find((one) => one.uuid === gpu.uuid);
    if (old && old.state !== gpu.state) changes.push(`GPU ${gpu.index}: ${OWNERS[gpu.state] ?? "controlled by its job"}.`);
  }
  return changes.join(" ");
};

const showStatus = (status) => {
  announce(describeChanges(page.status, status));
  page.status = status;
  showBadges(status);
  showLink(page.link, status);
  showNotices(page.link, status, page.troubles);
  showTiles(status, page.details);
  timeline.move(status);
  showJobs(status, page.details);
  showGpus(status);
  showCpu(status);
  showSources(status);
  showFoot(status);
  document.body.setAttribute("data-shown", status.now);
};

const onEvent = ({ event, data }) => {
  if (event === "status") {
    page.link.problem = null;
    showStatus(data);
    rereadIfDue(data);
  } else if (event === "problem") {
    page.link.problem = data.detail;
    showNotices(page.link, page.status, page.troubles);
  }
};

const onState = (state, why) => {
  byId("token").hidden = state !== "locked";
  if (state === "locked") byId("refused").textContent = session.getItem(TOKEN) ? "The token was refused." : "";
  if (state === page.link.state && why === page.link.why) return;
  const spoken = { live: "Connected to the daemon.", lost: "The connection to the daemon is lost.", locked: "The daemon requires an access token." };
  if (state !== page.link.state) {
    page.link.since = new Date();
    announce(spoken[state]);
  }
  page.link.state = state;
  page.link.why = why;
  document.body.setAttribute("data-link", state);
  showLink(page.link, page.status);
  showNotices(page.link, page.status, page.troubles);
};

setUpTheme();
const tryAgain = listen(onEvent, onState);
byId("token").addEventListener("submit", (event) => {
  event.preventDefault();
  session.setItem(TOKEN, byId("secret").value.trim());
  byId("secret").value = "";
  tryAgain();
});
document.addEventListener("visibilitychange", () => document.hidden || page.link.state === "live" || tryAgain());
