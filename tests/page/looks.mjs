// What holds in every state of the page: nothing too wide, nothing unreadable, nothing absent shown as something.

import assert from "node:assert/strict";
import { AXE, shoot } from "./daemon.mjs";

const NONSENSE = /NaN|undefined|null|Infinity|Invalid Date|\[object/;

/** Serious and critical violations that axe-core finds. */
const violations = async (page) => {
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(await axeSource());
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  return found.violations
    .filter((one) => ["serious", "critical"].includes(one.impact))
    .map((one) => `${one.id} (${one.impact}): ${one.help}: ${one.nodes.map((node) => `${node.html} ${node.failureSummary}`).join("; ")}`);
};

let source;
const axeSource = async () => (source ??= await (await import("node:fs/promises")).readFile(AXE, "utf8"));

/** Looks at the page as it is now, in both themes and at three widths, and keeps pictures of it. */
export const looksRight = async (page, name) => {
  for (const scheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme: scheme });
    const paper = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const brightness = paper.match(/\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0) / 3;
    assert.equal(brightness > 128, scheme === "light", `${name}: ${scheme} is ${paper}`);
    for (const width of [1200, 960, 768, 380]) {
      await page.setViewportSize({ width, height: 900 });
      const wide = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(wide <= width, `${name}: ${wide} px at ${width} px`);
      if (width === 1200 || width === 380) await shoot(page, `${name}-${scheme}-${width}`);
    }
    assert.deepEqual(await violations(page), [], `${name}, ${scheme}, narrow`);
    await page.setViewportSize({ width: 1200, height: 900 });
    assert.deepEqual(await violations(page), [], `${name}, ${scheme}`);
  }
  // A line whose class has no rule in the style sheet has no stroke.
  const unseen = await page.evaluate(() => [...document.querySelectorAll("svg line")]
    .filter((line) => getComputedStyle(line).stroke === "none").map((line) => line.outerHTML));
  assert.deepEqual(unseen, [], `${name}: lines without a stroke`);
  const text = await page.evaluate(() => document.body.innerText);
  assert.doesNotMatch(text, NONSENSE, name);
  assert.deepEqual(page.wrong, [], name);
};
