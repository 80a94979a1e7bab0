// Takes the picture of the page that README.md and the book show, from a demo after two of its ten days.
//
//   WATTUNE=target/release/wattune node tests/page/picture.mjs docs/src/images/page.png

import { Browser, Daemon, eventually, sleep } from "./daemon.mjs";

const path = process.argv[2];
const demo = await Daemon.start("demo", "--days", "10", "--duration", "180", "--jobs", "2", "--seed", "1", "--listen", "127.0.0.1:0");
const browser = await Browser.start();
try {
  const page = await browser.open(demo, { timezoneId: "UTC", viewport: { width: 1100, height: 1000 }, colorScheme: "light" });
  const begun = Date.parse((await demo.get("/v1/status")).now);
  await eventually("two days", async () => Date.parse((await demo.get("/v1/status")).now) - begun > 2.4 * 86_400_000);
  await sleep(1500);
  await page.screenshot({ path });
} finally {
  await browser.stop();
  await demo.stop("SIGKILL");
}
