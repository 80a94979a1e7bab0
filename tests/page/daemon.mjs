// The daemon as a process, its events as they come, and the browser.

import { spawn } from "node:child_process";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const require = createRequire(import.meta.url);
export const AXE = require.resolve("axe-core/axe.min.js");

const WATTUNE = process.env.WATTUNE ?? "target/release/wattune";
const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";
const SCREENSHOTS = process.env.WATTUNE_SCREENSHOTS;

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Asks again and again until `found` gives something that is neither false nor absent. */
export const eventually = async (what, found, patience = 90000) => {
  const end = Date.now() + patience;
  for (;;) {
    const value = await found();
    if (value) return value;
    if (Date.now() > end) throw new Error(`${what} did not happen within ${patience / 1000} s`);
    await sleep(100);
  }
};

/** Waits until `check` no longer throws: the page may show an answer whose body has not yet reached this process. */
export const holds = async (check, patience = 30000) => {
  const end = Date.now() + patience;
  for (;;) {
    try {
      return await check();
    } catch (error) {
      if (Date.now() > end) throw error;
    }
    await sleep(100);
  }
};

/** A running `wattune`, with all that it said. */
export class Daemon {
  constructor(child) {
    this.child = child;
    this.said = "";
    this.ended = new Promise((resolve) => child.once("exit", (code, signal) => resolve(code ?? signal)));
    child.stderr.on("data", (data) => (this.said += data));
    child.stdout.resume();
  }

  static async start(...args) {
    const daemon = new Daemon(spawn(WATTUNE, args, { stdio: ["ignore", "pipe", "pipe"] }));
    let gone = false;
    daemon.ended.then(() => (gone = true));
    const address = await eventually("listening", () => {
      if (gone) throw new Error(`it ended: ${daemon.said}`);
      return daemon.said.match(/http:\/\/(127\.0\.0\.1:\d+)/)?.[1];
    });
    daemon.origin = `http://${address}`;
    return daemon;
  }

  /** `wattune serve` on simulated GPUs with these settings, below `folder`. */
  static async serve(folder, settings, listen = "127.0.0.1:0") {
    const config = join(folder, "wattune.toml");
    const profile = "[profile]\nstep_w = 50.0\n";
    await writeFile(config, `[gpus]\nbackend = "simulated"\n${profile}${settings}`);
    return Daemon.start("serve", "--config", config, "--state-dir", join(folder, "state"), "--listen", listen);
  }

  async get(path) {
    const answer = await fetch(this.origin + path);
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
    return answer.json();
  }

  async send(method, path, body) {
    const headers = { "content-type": "application/json" };
    const answer = await fetch(this.origin + path, { method, headers, body: JSON.stringify(body) });
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
    return answer.json();
  }

  async stop(signal = "SIGTERM") {
    this.child.kill(signal);
    return this.ended;
  }
}

/** Keeps every status event by its time, as somebody beside the page hears them. */
export class Listener {
  constructor(daemon) {
    this.statuses = new Map();
    this.stop = new AbortController();
    this.listening = this.listen(daemon).catch(() => {});
  }

  async listen(daemon) {
    const answer = await fetch(`${daemon.origin}/v1/events`, { signal: this.stop.signal });
    let text = "";
    for await (const chunk of answer.body.pipeThrough(new TextDecoderStream())) {
      const blocks = (text + chunk).split("\n\n");
      text = blocks.pop();
      for (const block of blocks) {
        const data = block.match(/^event: ?status\ndata: ?(.*)$/m)?.[1];
        if (!data) continue;
        const status = JSON.parse(data);
        this.statuses.set(status.now, status);
      }
    }
  }

  async close() {
    this.stop.abort();
    await this.listening;
  }
}

export class Browser {
  static async start() {
    const args = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
      "--disable-component-update", "--disable-sync"];
    const browser = new Browser();
    browser.inner = await chromium.launch({ executablePath: CHROMIUM, args });
    if (SCREENSHOTS) await mkdir(SCREENSHOTS, { recursive: true });
    return browser;
  }

  /** A page of a daemon, in a zone that is not UTC. Complaints and foreign requests are kept in `wrong`. */
  async open(daemon, options = {}) {
    const context = await this.inner.newContext({ viewport: { width: 1200, height: 900 }, timezoneId: "Asia/Kolkata", ...options });
    const page = await context.newPage();
    page.wrong = [];
    page.read = new Map();
    page.tolerated = () => false;
    const complain = (text) => page.tolerated(text) || page.wrong.push(text);
    page.on("console", (message) => ["error", "warning"].includes(message.type()) && complain(`console: ${message.text()} ${message.location().url}`));
    page.on("pageerror", (error) => complain(`error: ${error.message}`));
    context.on("request", (request) => {
      const { protocol, origin } = new URL(request.url());
      if (protocol !== "data:" && origin !== daemon.origin) page.wrong.push(`a request to ${request.url()}`);
      if (request.method() !== "GET") page.wrong.push(`${request.method()} ${request.url()}`);
    });
    page.on("response", async (response) => {
      const { pathname } = new URL(response.url());
      if (!pathname.startsWith("/v1/") || pathname === "/v1/events") return;
      const body = await response.json().catch(() => undefined);
      page.read.set(pathname, [...(page.read.get(pathname) ?? []).slice(-7), body]);
    });
    await page.goto(`${daemon.origin}/`);
    return page;
  }

  async stop() {
    await this.inner.close();
  }
}

export const shoot = async (page, name) => {
  if (SCREENSHOTS) await page.screenshot({ path: join(SCREENSHOTS, `${name}.png`), fullPage: true });
};

/** A folder that goes with the test. */
export const scratch = async (t) => {
  const folder = await mkdtemp(join(tmpdir(), "wattune-page-"));
  t.after(() => rm(folder, { recursive: true, force: true }));
  return folder;
};
