// Checks every dashboard against the types that Grafana 10, 11 and 12 publish (@grafana/schema): each as a literal of the
// type Dashboard, and each panel with the options and field settings of its kind. Unknown properties are errors.
//
//     npm ci && node check.mjs [FOLDER]

import { readFileSync, readdirSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import ts from "typescript";

const here = dirname(fileURLToPath(import.meta.url));
const folder = resolve(process.argv[2] ?? join(here, "../../../dashboards/grafana"));
const releases = { 10: "grafana-schema-10", 11: "grafana-schema-11", 12: "@grafana/schema" };

// Kinds of panels: the module with the type of their options, and whether fields have settings of their own.
const kinds = {
  stat: ["stat/panelcfg/x/StatPanelCfg_types.gen", false],
  timeseries: ["timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen", true],
  bargauge: ["bargauge/panelcfg/x/BarGaugePanelCfg_types.gen", false],
  table: ["table/panelcfg/x/TablePanelCfg_types.gen", true],
  "state-timeline": ["statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen", true],
};

// Options that a release has added are left out, and Grafana fills in their defaults; those that are there must be known to
// all releases. JSON has strings where the types have enums; everything else stays as strict as it is.
const prelude = `
type Json<T> = unknown extends T ? T
  : T extends string ? \`\${T}\`
  : T extends (infer U)[] ? Json<U>[]
  : T extends object ? { [K in keyof T]: Json<T[K]> }
  : T;
`;

function source(name, schema, dashboard) {
  const lines = [`import type { Dashboard, Panel, RowPanel } from "${schema}";`];
  Object.entries(kinds).forEach(([, [module, fields]], i) => {
    // The types of 11 are reached by the name of a file only.
    const path = `${schema}/dist/esm/raw/composable/${module}${schema.endsWith("-11") ? ".js" : ""}`;
    lines.push(`import type { Options as Options${i}${fields ? `, FieldConfig as Field${i}` : ""} } from "${path}";`);
  });
  lines.push(prelude);
  const { panels, ...rest } = dashboard;
  lines.push(`export const dashboard: Json<Omit<Dashboard, "panels">> = ${JSON.stringify(rest, null, 1)};`);
  for (const panel of panels) {
    const i = Object.keys(kinds).indexOf(panel.type);
    const type = panel.type === "row" ? "RowPanel"
      : i < 0 ? "never"
      : `Omit<Panel, "options" | "fieldConfig"> & { options: Partial<Options${i}>; fieldConfig: Fields<${kinds[panel.type][1] ? `Field${i}` : "Record<string, never>"}> }`;
    lines.push(`export const panel${panel.id}: Json<${type}> = ${JSON.stringify(panel, null, 1)};`);
  }
  lines.push(`import type { FieldConfigSource } from "${schema}";`);
  // Grafana leaves room for anything beside the settings of a kind; here nothing else is expected.
  lines.push(`type Fields<T> = Omit<FieldConfigSource, "defaults"> & {
    defaults: Omit<FieldConfigSource["defaults"], "custom"> & { custom?: T } };`);
  return [join(here, `${name}.ts`), lines.join("\n")];
}

function check(release, dashboards) {
  const files = new Map(dashboards.map(([name, dashboard]) => source(name, releases[release], dashboard)));
  const options = {
    strict: true, noEmit: true, skipLibCheck: true, target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext,
    moduleResolution: ts.ModuleResolutionKind.Bundler, types: [],
  };
  const host = ts.createCompilerHost(options);
  const { getSourceFile, fileExists, readFile } = host;
  host.fileExists = (path) => files.has(path) || fileExists(path);
  host.readFile = (path) => files.get(path) ?? readFile(path);
  host.getSourceFile = (path, version, ...more) =>
    files.has(path) ? ts.createSourceFile(path, files.get(path), version) : getSourceFile(path, version, ...more);
  const found = ts.getPreEmitDiagnostics(ts.createProgram([...files.keys()], options, host));
  for (const problem of found) {
    const text = ts.flattenDiagnosticMessageText(problem.messageText, "\n");
    const at = problem.file ? problem.file.getLineAndCharacterOfPosition(problem.start) : undefined;
    const line = at ? problem.file.text.split("\n")[at.line].trim() : "";
    console.error(`Grafana ${release}, ${problem.file?.fileName ?? ""}: ${line}\n  ${text}`);
  }
  return found.length;
}

// What the types do not say.
function rules(name, dashboard) {
  const wrong = [];
  const say = (what) => wrong.push(`${name}: ${what}`);
  if (dashboard.id !== null) say("id must be null: Grafana gives its own");
  if (!/^[a-z-]{5,40}$/.test(dashboard.uid ?? "")) say("uid must be there and stay the same");
  if (!(dashboard.schemaVersion <= 39)) say("schemaVersion must be at most 39, which Grafana 10 reads");
  const variables = dashboard.templating.list;
  if (variables[0]?.type !== "datasource") say("the first variable must be the data source");
  for (const one of variables.slice(1)) if (one.datasource?.uid !== "${datasource}") say(`variable ${one.name}: ${"${datasource}"}`);
  const ids = new Set();
  for (const panel of dashboard.panels) {
    if (ids.has(panel.id)) say(`two panels with id ${panel.id}`);
    ids.add(panel.id);
    if (panel.type === "row") continue;
    const { defaults } = panel.fieldConfig;
    const known = new Set(["datasource", ...variables.map((v) => v.name), "__range", "__rate_interval", "__interval"]);
    if (!(panel.description?.length > 15)) say(`${panel.title}: no description`);
    if (!defaults.unit) say(`${panel.title}: no unit`);
    if (!(defaults.thresholds?.steps?.length > 0)) say(`${panel.title}: no thresholds`);
    if (!(panel.targets?.length > 0)) say(`${panel.title}: no query`);
    for (const target of [panel, ...panel.targets])
      if (target.datasource?.uid !== "${datasource}") say(`${panel.title}: the data source must be the variable`);
    for (const target of panel.targets)
      for (const [, used] of target.expr.matchAll(/\$\{?([A-Za-z_]\w*)/g)) if (!known.has(used)) say(`${panel.title}: no variable ${used}`);
    const { x, y, w, h } = panel.gridPos;
    for (const other of dashboard.panels) {
      const o = other.gridPos;
      if (other.id < panel.id && x < o.x + o.w && o.x < x + w && y < o.y + o.h && o.y < y + h)
        say(`${panel.title} lies over ${other.title}`);
    }
    if (x + w > 24) say(`${panel.title} is too wide`);
  }
  return wrong;
}

const dashboards = readdirSync(folder).filter((f) => f.endsWith(".json")).sort()
  .map((f) => [f.slice(0, -5), JSON.parse(readFileSync(join(folder, f), "utf8"))]);
if (dashboards.length === 0) throw new Error(`no dashboards in ${folder}`);
const uids = new Set(dashboards.map(([, d]) => d.uid));
const wrong = dashboards.flatMap(([name, d]) => rules(name, d));
if (uids.size !== dashboards.length) wrong.push("two dashboards have one uid");
for (const line of wrong) console.error(line);
let bad = wrong.length;
for (const release of Object.keys(releases)) {
  const count = check(release, dashboards);
  console.log(`Grafana ${release}: ${dashboards.length} dashboards, ${count} violations`);
  bad += count;
}
process.exit(bad === 0 ? 0 : 1);
