// The page in headless Chromium against the real daemon. What it shows is compared with what the API says: a second
// listener keeps each status event by its time, and the page says which one it shows.
//
//   WATTUNE=target/release/wattune WATTUNE_SCREENSHOTS=target/screenshots node --test tests/page/page.test.mjs
//
// WATTUNE_DEMO is days/seconds of the demo, 10/180 if absent; CHROMIUM names the browser.

import assert from "node:assert/strict";
import { rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Browser, Daemon, Listener, eventually, holds, scratch, sleep } from "./daemon.mjs";
import { looksRight } from "./looks.mjs";
import { close, sameGpu, sameHour, sameJob, sentence, shown, shownWith, sum } from "./shown.mjs";
import { everythingAtOnce } from "./states.mjs";

let browser;
before(async () => (browser = await Browser.start()));
after(() => browser.stop());

test("ten days of the demo: content, live update, themes, narrow screens, accessibility", { timeout: 1800000 }, async (t) => {
  const [days, duration] = (process.env.WATTUNE_DEMO ?? "10/180").split("/");
  const demo = await Daemon.start("demo", "--days", days, "--duration", duration, "--jobs", "3", "--seed", "1", "--listen", "127.0.0.1:0");
  t.after(() => demo.stop("SIGKILL"));
  await demo.send("PUT", "/v1/recurring/nightly", { batch_sizes: [32, 64, 128], default_batch_size: 64, max_epochs: 10, target_metric: 0.6, max_power_w: 300 });
  for (let epoch = 0; epoch < 4; epoch += 1) {
    const { number } = await demo.send("POST", "/v1/recurring/nightly/trials", {});
    const report = { epochs: 2 + (epoch % 3), energy_j: 2.5e6 + 4e5 * epoch, time_s: 9000 + 700 * epoch, metric: 0.7 };
    await demo.send("POST", `/v1/recurring/nightly/trials/${number}/progress`, report);
  }
  const listener = new Listener(demo);
  t.after(() => listener.close());
  const page = await browser.open(demo);
  await page.locator("#timeline-details summary").click();
  await eventually("plans and accounts", async () => {
    const now = await shown(page);
    return now.jobs.length === 3 && now.jobs.every((job) => job.state === "following its plan" && /%/.test(job.facts["Carbon saved"]?.text)) && now.timeline.length > 0;
  });

  await t.test("the figures are the API's", async () => {
    for (let round = 0; round < 5; round += 1) {
      const [now, status] = await shownWith(page, listener);
      assert.equal(status.simulated, true);
      assert.match(now.badges, /control.*simulated.*synthetic · synthetic · fresh/);
      assert.match(now.link, /^live/);
      assert.equal(now.jobs.length, status.jobs.length);
      now.jobs.forEach((job, i) => sameJob(job, status.jobs[i], `${job.name} at ${now.now}`));
      assert.equal(now.gpus.length, status.gpus.length);
      now.gpus.forEach((row, i) => sameGpu(row, status.gpus[i], status.jobs));
      assert.deepEqual(now.cpu.map((row) => row[0].text), status.cpu.zones.map((zone) => zone.zone));
      now.cpu.forEach((row, i) => {
        const zone = status.cpu.zones[i];
        for (const [cell, told] of [[row[1], zone.power_w], [row[2], zone.energy_j]]) {
          if (told === null) assert.equal(cell.text, "unknown", zone.zone);
          else close(cell.value, told, zone.zone);
        }
      });
      const tiles = now.tiles;
      close(tiles["Carbon intensity"].value, status.carbon.intensity_g_per_kwh, "intensity");
      assert.equal(tiles["Carbon intensity"].text, `${Math.round(status.carbon.intensity_g_per_kwh)} g/kWh`);
      close(tiles["Draw of all GPUs"].value, sum(status.gpus.map((gpu) => gpu.power_w)), "draw");
      close(tiles["Emitted by open jobs"].value, sum(status.jobs.map((job) => job.carbon_g)), "emitted");
      for (const problem of status.problems) assert.ok(now.notices.includes(sentence(problem)), problem);
      assert.equal(now.sources[0][0].text, "synthetic active".replace(" ", ""));
      await sleep(700);
    }
  });

  await t.test("savings are those of the accounts", () => holds(async () => {
    for (const job of (await shown(page)).jobs) {
      const told = page.read.get(`/v1/jobs/${job.id}/emissions`).map((account) => account?.savings?.against_original ?? account?.against_max);
      const figures = told.map((against) => against?.carbon_reduction_pct?.mean ?? against?.carbon_reduction_pct).filter(Number.isFinite);
      const said = job.facts["Carbon saved"];
      assert.ok(figures.some((figure) => Math.abs(figure - said.value) < 1e-9), `${said.text}: ${figures}`);
      assert.match(said.text, new RegExp(`^${Math.abs(said.value).toFixed(1).replace(".", "\\.")} %`));
    }
  }));

  await t.test("the timeline's table is the API's past and forecast, and the limits are the plan's", async () => {
    const timeline = await eventually("hours behind and a day and a half ahead", async () => {
      const { timeline, heads, now } = await shown(page);
      const answers = [...page.read.get("/v1/carbon/history"), ...page.read.get("/v1/carbon/forecast")];
      const known = timeline.filter((row) => sameHour(row, heads, answers, now)).length;
      return known === timeline.length && known >= 36 + 5 && timeline;
    }, 400000);
    const { heads } = await shown(page);
    const limits = timeline.flatMap((row) => row.slice(4)).map((cell) => cell.value).filter((w) => w !== null);
    assert.ok(limits.length > 30 && limits.every((w) => w >= 100 && w <= 300), `${limits}`);
    const bands = timeline.map((row) => row[2].text).filter((text) => /^\d+ to \d+$/.test(text));
    assert.ok(bands.length > 12, `${bands.length} hours have an interval`);
    assert.ok(heads.some((head) => /GPU 1, 2/.test(head)), `${heads}`);
  });

  await t.test("the best starts are the API's", () => holds(async () => {
    const rows = await page.evaluate(() => [...document.querySelectorAll("#starts tbody tr")].map((row) => ({
      head: row.querySelector("th").textContent, start: row.querySelector("td").textContent, saving: Number(row.querySelector("data")?.value),
    })));
    assert.deepEqual(rows.map((row) => row.head), ["1 h", "4 h", "8 h", "24 h"]);
    for (const row of rows) {
      const told = page.read.get("/v1/when").filter((advice) => advice?.duration_s === 3600 * parseInt(row.head, 10));
      const same = (advice) => advice.starts_at_once ? row.start === "now" : Math.abs(advice.expected_saving_pct - row.saving) < 1e-9;
      assert.ok(told.some(same), `${JSON.stringify(row)}: ${JSON.stringify(told.map((advice) => [advice.start, advice.expected_saving_pct]))}`);
    }
  }));

  await t.test("the charts are drawn", async () => {
    for (const id of ["intensity-plot", "limits-plot"]) {
      const colours = await page.evaluate((id) => {
        const canvas = document.querySelector(`#${id} canvas`);
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const seen = new Map();
        for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200) seen.set(data.slice(i, i + 3).join(), (seen.get(data.slice(i, i + 3).join()) ?? 0) + 1);
        return [...seen.values()].filter((count) => count > 40).length;
      }, id);
      assert.ok(colours >= 3, `${id} has ${colours} colours`);
    }
  });

  await t.test("estimates of batch sizes are the API's", async () => {
    const { arms } = await demo.get("/v1/recurring/nightly");
    const rows = (await shown(page)).recurring;
    assert.equal(rows.length, arms.length);
    arms.forEach((arm, i) => {
      const [size, cost, runs] = rows[i];
      assert.ok(size.text.startsWith(String(arm.batch_size)) && /best so far/.test(size.text) === arm.favourite, size.text);
      if (arm.mean_cost_j === null) assert.equal(cost.text, "not tried yet");
      else close(cost.value, arm.mean_cost_j, "cost");
      assert.equal(runs.value, arm.runs);
    });
    assert.ok(arms.some((arm) => arm.mean_cost_j !== null && arm.deviation_j !== null));
  });

  await t.test("it goes on by itself", async () => {
    const first = await shown(page);
    const later = await eventually("progress", async () => {
      const now = await shown(page);
      return now.jobs[0] && now.jobs[0].progress.value > first.jobs[0].progress.value && now;
    });
    assert.ok(Date.parse(later.now) > Date.parse(first.now));
    const spoken = await page.evaluate(() => document.getElementById("announce").textContent);
    assert.match(spoken, /Connected|Job|GPU|signal/);
  });

  await t.test("times are the viewer's, with UTC beside them", async () => {
    const [title, iso, text] = await page.evaluate(() => {
      const time = document.querySelector("#link time");
      return [time.title, time.dateTime, time.textContent];
    });
    assert.equal(title, `${iso.slice(0, 19).replace("T", " ")} UTC`);
    const minutes = (clock) => clock.split(":").slice(0, 2).reduce((h, m) => 60 * Number(h) + Number(m));
    // Kolkata is 5:30 ahead.
    assert.equal((minutes(text) - minutes(iso.slice(11, 16)) + 1440) % 1440, 330);
  });

  await t.test("looks", () => looksRight(page, "demo"));

  await t.test("everything is reached with the keyboard, and a theme is remembered", async () => {
    await page.reload();
    await eventually("content", async () => (await shown(page)).jobs.length > 0);
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
    assert.ok(await page.evaluate(() => document.activeElement.getBoundingClientRect().top >= 0));
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.id), "main");
    await page.evaluate(() => document.activeElement.blur());
    await page.locator("#theme").focus();
    for (const theme of ["light", "dark"]) {
      await page.keyboard.press("Enter");
      assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), theme);
    }
    await page.reload();
    await eventually("content", () => page.evaluate(() => document.body.dataset.read));
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
    const walked = [];
    for (let i = 0; i < 40; i += 1) {
      await page.keyboard.press("Tab");
      const at = await page.evaluate(() => {
        const node = document.activeElement;
        if (node === document.body) return null;
        const { outlineStyle, outlineWidth } = getComputedStyle(node);
        return { name: node.tagName + (node.id ? `#${node.id}` : ""), visible: outlineStyle !== "none" && Number.parseFloat(outlineWidth) >= 2 };
      });
      if (at === null) break;
      assert.ok(at.visible, `the focus on ${at.name} cannot be seen`);
      walked.push(at.name);
      if (at.name === "SUMMARY") {
        await page.keyboard.press("Enter");
        await page.locator("#timeline-table table").waitFor();
      }
    }
    assert.ok(await page.locator("#timeline-details").evaluate((details) => details.open));
    for (const name of ["A", "BUTTON#theme", "SUMMARY"]) assert.ok(walked.includes(name), `${name} is not among ${walked}`);
    assert.ok(walked.includes("DIV"), `the table that scrolls is not among ${walked}`);
    // The focus survives what changes around it.
    await page.locator("#timeline-details summary").focus();
    const before = (await shown(page)).now;
    await eventually("another status", async () => (await shown(page)).now !== before);
    assert.equal(await page.evaluate(() => document.activeElement.tagName), "SUMMARY");
    await page.locator("#theme").press("Space");
    assert.equal(await page.locator("#theme").innerText(), "Theme: system");
    assert.deepEqual(page.wrong, []);
  });

  await t.test("nothing moves for who does not want it to", async () => {
    await page.emulateMedia({ reducedMotion: "reduce" });
    const moving = await page.evaluate(() => [...document.querySelectorAll("*")].filter((node) => {
      const style = getComputedStyle(node);
      return [style.transitionDuration, style.animationDuration].some((d) => d.split(",").some((part) => Number.parseFloat(part) > 0));
    }).length);
    assert.equal(moving, 0);
  });

  await t.test("a job that ends is listed with its account, and its GPU is restored", async () => {
    // A job may end after the page has read the status and before it asks for the job's plan.
    page.tolerated = (text) => /404 .*\/v1\/jobs\/[^/]+\/plan$/.test(text);
    await page.setViewportSize({ width: 1200, height: 900 });
    const found = await eventually("the end of the shortest job", async () => {
      const now = await shown(page);
      return now.ended.length > 0 && now.ended[0][3].value !== null && now.gpus.some((row) => row[1].text === "Free") && now;
    }, 400000);
    const job = found.ended.at(-1);
    const told = (await demo.get("/v1/jobs?state=ended")).at(-1);
    const account = await demo.get(`/v1/jobs/${told.job_id}/emissions`);
    assert.equal(job[0].text, told.name);
    assert.equal(job[1].time, told.ended_at);
    close(job[3].value, account.energy_j, "energy");
    assert.ok(found.jobs.every(({ name }) => name !== told.name), "it is no longer open");
    const free = found.gpus.find((row) => row[1].text === "Free");
    assert.equal(free[2].text, "300 W", "the original limit");
    await looksRight(page, "ended");
  });

  await t.test("when the demo has ended the page says that the daemon is gone, and shows what it was", async () => {
    page.tolerated = (text) => /ERR_|Failed to load resource/.test(text);
    assert.equal(await demo.ended, 0);
    await eventually("the loss", async () => /The connection to the daemon has been lost since \d\d:\d\d:\d\d/.test((await shown(page)).notices));
    const lost = await shown(page);
    assert.match(lost.link, /^connection lost/);
    assert.ok(lost.gpus.length === 4 && lost.ended.length > 0, "what was known stays");
    assert.match(await page.evaluate(() => document.getElementById("announce").textContent), /lost/);
    await looksRight(page, "lost");
  });
});

test("a daemon without jobs and without a signal says so, and nothing is a zero", { timeout: 180000 }, async (t) => {
  const folder = await scratch(t);
  const settings = `[carbon]\nsource = "file"\n[carbon.file]\npath = "${join(folder, "absent.csv")}"\n`;
  let daemon = await Daemon.serve(folder, settings);
  t.after(() => daemon.stop("SIGKILL"));
  const page = await browser.open(daemon);
  await eventually("all of it", async () => (await page.evaluate(() => document.body.dataset.read)) && /No job is registered/.test(await page.locator("#jobs").innerText()));
  const now = await shown(page);
  assert.match(now.badges, /no signal/);
  assert.match(now.notices, /There is no carbon signal; planning with \d+ g\/kWh from the configured constant/);
  assert.equal(now.tiles["Carbon intensity"].text, "unknown");
  assert.equal(now.tiles["Emitted by open jobs"].text, "no open job");
  assert.equal(now.tiles["Saved by open jobs"].text, "no open job");
  assert.match(await page.locator("#jobs").innerText(), new RegExp(`curl -s ${daemon.origin}/v1/jobs`));
  assert.match(await page.locator("#timeline-empty").innerText(), /There are no intensities, neither past nor forecast/);
  assert.match(await page.locator("#recurring").innerText(), /^None\./);
  assert.doesNotMatch(await page.evaluate(() => document.getElementById("tiles").innerText), /\b0 (g|kg|W|J)\b/);
  await looksRight(page, "empty");

  await t.test("a job that has said nothing yet has no figures", async () => {
    const { job_id: id } = await daemon.send("POST", "/v1/jobs", { name: "silent", gpus: [0], lease_s: 600 });
    await eventually("the job", async () => (await shown(page)).jobs.length === 1);
    const [job] = (await shown(page)).jobs;
    assert.equal(job.progress, null);
    assert.match(await page.locator("#jobs").innerText(), /No progress was reported yet/);
    for (const name of ["Slowdown so far", "Emissions", "Carbon saved", "Expected end"]) assert.match(job.facts[name].text, /^unknown/, name);
    await daemon.send("DELETE", `/v1/jobs/${id}`);
    await eventually("its end", async () => (await shown(page)).jobs.length === 0);
  });

  await t.test("a daemon that comes back is found again", async () => {
    page.tolerated = (text) => /ERR_|Failed to load resource/.test(text);
    await daemon.stop("SIGKILL");
    await eventually("the loss", async () => /lost since/.test((await shown(page)).notices));
    daemon = await Daemon.serve(folder, settings, new URL(daemon.origin).host);
    await eventually("the daemon", async () => /^live/.test((await shown(page)).link));
    assert.doesNotMatch((await shown(page)).notices, /lost since/);
  });
});

test("a signal that grows old is said to be stale, and with what plans are made instead", { timeout: 180000 }, async (t) => {
  const folder = await scratch(t);
  const file = join(folder, "carbon.csv");
  const start = Math.floor(Date.now() / 3600e3) * 3600e3 - 48 * 3600e3;
  const slots = Array.from({ length: 96 }, (_, i) => `${new Date(start + i * 3600e3).toISOString()},${300 + 60 * Math.sin((i * Math.PI) / 12)}`);
  await writeFile(file, `timestamp,forecast\n${slots.join("\n")}\n`);
  const daemon = await Daemon.serve(folder, `[carbon]\nsource = "file"\nzone = "DE"\npoll_interval_s = 1\n[carbon.file]\npath = "${file}"\n`);
  t.after(() => daemon.stop("SIGKILL"));
  const page = await browser.open(daemon);
  await eventually("a fresh signal", async () => /DE · file · fresh/.test((await shown(page)).badges));
  await rm(file);
  await eventually("a stale signal", async () => /· stale/.test((await shown(page)).badges));
  const now = await shown(page);
  assert.match(now.notices, /The signal has been stale since .*\d\d:\d\d; planning with \d+ g\/kWh from the active source since /);
  const { carbon } = await daemon.get("/v1/status");
  assert.equal(carbon.freshness, "stale");
  assert.ok(now.sources[0][5].text.includes(carbon.sources[0].last_error.slice(1, 30)), now.sources[0][5].text);
  await looksRight(page, "stale");

  await t.test("a daemon that goes silent is lost, too, and found again when it speaks", async () => {
    daemon.child.kill("SIGSTOP");
    await eventually("the loss", async () => /lost since \d\d:\d\d:\d\d \(the daemon is silent\)/.test((await shown(page)).notices));
    daemon.child.kill("SIGCONT");
    await eventually("the daemon", async () => /^live/.test((await shown(page)).link));
    assert.doesNotMatch((await shown(page)).notices, /lost since/);
  });
});

test("a daemon that wants a token is given one, kept for the tab alone", { timeout: 60000 }, async (t) => {
  const folder = await scratch(t);
  const daemon = await Daemon.serve(folder, "[control]\nobserve = true\n[carbon]\nsource = \"fixed\"\n");
  t.after(() => daemon.stop("SIGKILL"));
  const page = await browser.open(daemon);
  await eventually("content", async () => /observe: limits are never set/.test((await shown(page)).badges));
  page.tolerated = (text) => /401/.test(text);
  await page.route("**/v1/**", (route) =>
    route.request().headers().authorization === "Bearer sesame" ? route.continue() : route.fulfill({ status: 401, json: { detail: "a token is needed" } }));
  await page.reload();
  await page.locator("#secret").waitFor({ state: "visible" });
  await looksRight(page, "token");
  await page.locator("#secret").fill("wrong");
  await page.keyboard.press("Enter");
  await eventually("a refusal", async () => /was refused/.test(await page.locator("#refused").innerText()));
  await page.locator("#secret").fill("sesame");
  await page.keyboard.press("Enter");
  await eventually("content", async () => /^live/.test((await shown(page)).link));
  assert.equal(await page.locator("#token").isVisible(), false);
  assert.deepEqual(await page.evaluate(() => [Object.values(sessionStorage), Object.values(localStorage).includes("sesame")]), [["sesame"], false]);
  assert.deepEqual(page.wrong, []);
});

test("what goes wrong with GPUs and jobs is said in words, and texts of others stay texts", { timeout: 120000 }, async (t) => {
  const folder = await scratch(t);
  const daemon = await Daemon.serve(folder, "[carbon]\nsource = \"fixed\"\n");
  t.after(() => daemon.stop("SIGKILL"));
  const { status, accounts, hostile } = everythingAtOnce(await daemon.get("/v1/status"));
  const page = await browser.open(daemon);
  await eventually("content", () => page.evaluate(() => document.body.dataset.read));
  const event = `event: status\ndata: ${JSON.stringify(status)}\n\n`;
  await page.route("**/v1/events", (route) => route.fulfill({ contentType: "text/event-stream", body: event }));
  await page.route("**/v1/jobs/*/emissions", (route) => route.fulfill({ json: accounts[route.request().url().split("/").at(-2)] }));
  await page.route("**/v1/jobs/*/plan", (route) => route.fulfill({ json: { segments: [] } }));
  await page.route("**/v1/gpus/*/history", (route) => route.fulfill({ json: [] }));
  await page.reload();
  await eventually("content", () => page.evaluate(() => document.body.dataset.read));
  const now = await shown(page);
  const states = now.gpus.map((row) => row[1].text);
  assert.deepEqual(states.slice(0, 3), ["External limit", "Lost", "Does not answer"]);
  assert.match(states[3], /^Manual override until .*\d\d:\d\d$/);
  assert.equal(states[4], "Observed only");
  assert.match(states[6], /also used by: booked$/);
  const [external, lost, , hand, , capped] = now.gpus;
  assert.deepEqual([lost[2].text, lost[3].text, lost[4].text, lost[5].text], ["unknown", "not reported", "unknown", "not reported"]);
  assert.equal(external[5].text, "Slowed by heat (hardware), at its power limit");
  assert.match(hand[2].text, /^200 W, 180 W wanted/);
  assert.match(capped[2].text, /^200 W of 220 W requested.*capped out of band at 200 W, clocks locked to 1,410 MHz/);
  assert.match(await page.locator("#gpus").innerText(), /A call of the driver hangs/);
  assert.equal(now.cpu.length, 1);
  assert.equal(now.cpu[0][1].text, "unknown");
  assert.match(await page.locator("#cpu").innerText(), /May not be read: only root may/);
  assert.match(await page.locator("#jobs").innerText(), /650 more jobs are not shown here/);
  assert.match(await page.locator("#problems").innerText(), /12 more; \/v1\/status lists them/);
  assert.match(now.tiles["Emitted by open jobs, 3 of 653"].text, /^1\.50 kg/);
  const [paused, odd, booked] = now.jobs;
  assert.equal(paused.state, "asked to pause");
  assert.match(paused.reason, /^The hour is dirty \(resumes at .*\d\d:\d\d\)$/);
  assert.match(paused.facts["Slowdown so far"].text, /^−0\.10 % \(due .*, budget 2\.50 kg\)$/);
  assert.match(paused.facts["Power limit"].text, /^220 W, clocks at 1,410 MHz$/);
  assert.equal(paused.facts["Carbon saved"].text, "19.4 % (17.2 to 21.5) of 620 g at the original limit");
  assert.deepEqual(paused.warnings, ["The deadline will be missed by 600 s"]);
  assert.equal(odd.name, hostile);
  assert.equal(odd.facts["Carbon saved"].text, "unknown (another job shares its GPU)");
  assert.equal(booked.facts["Power limit"].text, "none wanted");
  assert.equal(now.tiles["Node's cap"].text, "1,200 W");
  assert.equal(now.tiles["Carbon budget left"].text, "−1.00 kg");
  assert.equal(now.tiles["Emissions in 30 days"].text, "4.20 kg");
  assert.equal(now.tiles["Emissions in 30 days"].below, "10.0 kWh: 70 % final, 20 % provisional, 10 % forecast; 2 gaps in the readings");
  assert.equal(now.tiles.Price.text, "-3.5 EUR/MWh".replace("-", "−"));
  assert.ok(now.notices.includes(hostile));
  assert.equal(await page.locator("img").count(), 0);
  await looksRight(page, "troubles");
});
