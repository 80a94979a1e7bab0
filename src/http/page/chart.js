// Step charts over time with a "now" line. Colours come from the style sheet, so that the theme is in one place.

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const LEFT = 46;
const FONT = "11px system-ui, sans-serif";
const HOUR = 3600;

/** Returns the span that contains a time, from spans in seconds sorted by `start`; `undefined` in gaps. */
const spanAt = (spans, t) => {
  let [low, high] = [0, spans.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (spans[middle].end <= t) low = middle + 1;
    else high = middle;
  }
  return spans[low] && spans[low].start <= t ? spans[low] : undefined;
};

/** Returns all lines over common times, as uPlot requires; null in a line's gaps. */
const columns = (lines) => {
  const moments = new Set(lines.flatMap((line) => line.spans.flatMap((span) => [span.start, span.end])));
  const xs = [...moments].sort((a, b) => a - b);
  return [xs, ...lines.map((line) => xs.map((x) => spanAt(line.spans, x)?.value ?? null))];
};

/** Draws steps: each value holds until the next time. */
const steps = (u, series) => {
  const [xs, ys] = [u.data[0], u.data[series]];
  const path = new Path2D();
  let drawing = false;
  for (let i = 0; i + 1 < xs.length; i += 1) {
    if (ys[i] === null) {
      drawing = false;
      continue;
    }
    const [left, right, y] = [u.valToPos(xs[i], "x", true), u.valToPos(xs[i + 1], "x", true), u.valToPos(ys[i], "y", true)];
    if (drawing) path.lineTo(left, y);
    else path.moveTo(left, y);
    path.lineTo(right, y);
    drawing = true;
  }
  return { stroke: path, fill: null, clip: null, band: null, gaps: null, flags: 1 };
};

const hourLabels = (u, splits, axis, space, increment) =>
  splits.map((t) => {
    const at = new Date(t * 1000);
    const midnight = at.getHours() === 0 && at.getMinutes() === 0;
    return midnight || increment >= 24 * HOUR ? dayOnly.format(at).replace(",", "") : clockTime.format(at);
  });

/**
 * Creates a chart in `host`. `draw` takes `{lines, band, from, until, now, top}`: lines with `{name, spans, colour, dash, width}`, a
 * band of spans with `low` and `high`, all times in seconds. `onCursor` gets the time at the cursor, or null.
 */
const makeChart = (host, height, hasTimes, onCursor) => {
  let [plot, made, model] = [null, "", null];

  const under = (u) => {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.fillStyle = colour("--band");
    for (const { start, end, low, high } of model.band) {
      const [left, right] = [u.valToPos(start, "x", true), u.valToPos(end, "x", true)];
      const [top, bottom] = [u.valToPos(high, "y", true), u.valToPos(low, "y", true)];
      ctx.fillRect(left, top, right - left, bottom - top);
    }
    ctx.restore();
  };

  const over = (u) => {
    const { ctx, bbox } = u;
    const x = Math.round(u.valToPos(model.now, "x", true));
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour("--now");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.font = `600 ${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textBaseline = "top";
    ctx.textAlign = "left";
    ctx.fillText("now", x + 4 * devicePixelRatio, bbox.top + 2 * devicePixelRatio);
    ctx.restore();
  };

  const make = () => {
    plot?.destroy();
    const grid = { stroke: () => colour("--grid"), width: 1 };
    const axis = { stroke: () => colour("--muted"), font: FONT, grid, ticks: { show: false } };
    plot = new uPlot({
      width: Math.max(host.clientWidth, 100),
      height,
      padding: [8, 8, hasTimes ? 0 : 6, 0],
      legend: { show: false },
      cursor: { sync: { key: "timeline" }, drag: { x: false, y: false }, points: { show: false }, y: false },
      scales: {
        x: { time: true, range: () => [model.from, model.until] },
        y: { range: () => [0, model.top] },
      },
      axes: [
        { ...axis, values: hourLabels, space: 64, size: hasTimes ? 26 : 4, gap: 4, ...(hasTimes ? {} : { values: (u, v) => v.map(() => "") }) },
        { ...axis, size: LEFT, gap: 6, space: 36 },
      ],
      series: [
        {},
        ...model.lines.map((line) => ({
          stroke: () => colour(line.colour), dash: line.dash, width: line.width ?? 1.6, paths: steps, points: { show: false },
        })),
      ],
      hooks: {
        drawAxes: [under],
        draw: [over],
        setCursor: [(u) => onCursor(u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : null)],
      },
    }, columns(model.lines), host);
  };

  const draw = (next) => {
    model = next;
    const signature = JSON.stringify(model.lines.map(({ name, colour, dash, width }) => [name, colour, dash, width]));
    if (signature !== made) {
      made = signature;
      make();
    } else plot.setData(columns(model.lines));
  };

  new ResizeObserver(() => plot?.setSize({ width: Math.max(host.clientWidth, 100), height })).observe(host);

  return {
    draw,
    /** Moves "now" without new data. */
    move: (times) => {
      if (!plot) return;
      Object.assign(model, times);
      plot.setScale("x", { min: model.from, max: model.until });
    },
    repaint: () => plot?.redraw(false, true),
  };
};

/** Creates the legend of a chart as a list, readable for everyone. */
const legend = (entries) =>
  h("ul", { class: "legend" },
    entries.map(({ name, colour: ink, dash, band }) =>
      h("li", {},
        s("svg", { width: 22, height: 10, "aria-hidden": "true", class: ink.slice(2) },
          band
            ? s("rect", { x: 0, y: 1, width: 22, height: 8, class: "area" })
            : s("line", { x1: 0, x2: 22, y1: 5, y2: 5, class: "stroke", "stroke-dasharray": dash ? "4 3" : null })),
        name)));
