"""The vocabulary of the dashboards: panels, queries with the range in which their answers must lie, and variables."""

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

# One colour for one thing, on every dashboard.
INTENSITY, DRAW, LIMIT, CEILING = "purple", "blue", "orange", "text"
GOOD, FAIR, BAD = "green", "orange", "red"

G_PER_KWH = "suffix: gCO₂e/kWh"
G_PER_H = "suffix: gCO₂e/h"
GRAMS = "suffix: gCO₂e"
GREENNESS = [(None, GOOD), (200, "yellow"), (400, FAIR), (700, BAD)]


class Query:
    """A query, the legend of its series, the bounds of its values, and how many series there are at the least."""

    def __init__(self, expr, low, high, legend="", least=1, column=None):
        self.expr, self.low, self.high = expr, low, high
        self.legend, self.least, self.column = legend, least, column


def by_kind(counter):
    """A counter of devices, summed over each kind of them: GPUs have UUIDs, parts of processors say what they are."""
    gpu = f'label_replace({counter}, "kind", "gpu", "device", ".*")'
    return f'sum by (kind) (label_replace({gpu}, "kind", "$1", "device", "(cpu|dram):.*"))'


KINDS = {"gpu": "blue", "cpu": "orange", "dram": "yellow"}


def steps(thresholds):
    return {"mode": "absolute", "steps": [{"value": at, "color": color} for at, color in thresholds]}


def words(mapping):
    """Value mappings: {number: (text, color)}."""
    options = {str(k): {"text": t, "color": c, "index": i} for i, (k, (t, c)) in enumerate(mapping.items())}
    return [{"type": "value", "options": options}]


def targets(queries, instant, table=False):
    return [{
        "refId": chr(ord("A") + i), "datasource": DATASOURCE, "expr": q.expr, "legendFormat": q.legend or "__auto",
        "instant": instant, "range": not instant, "editorMode": "code", "format": "table" if table else "time_series",
    } for i, q in enumerate(queries)]


def panel(kind, title, description, queries, size, instant, unit, thresholds, **more):
    """Common to all kinds. The queries stay beside the panel under `queries` until the dashboard is written."""
    defaults = {"unit": unit, "thresholds": steps(thresholds), "color": more.pop("color", {"mode": "thresholds"})}
    for key in ("decimals", "min", "max", "noValue", "mappings", "custom"):
        if key in more:
            defaults[key] = more.pop(key)
    return {
        "type": kind, "title": title, "description": description, "datasource": DATASOURCE, "size": size,
        "queries": queries, "targets": targets(queries, instant, more.pop("table", False)),
        "fieldConfig": {"defaults": defaults, "overrides": more.pop("overrides", [])},
        "options": more.pop("options"), **more,
    }


def stat(title, description, query, unit, thresholds, width=4, height=4, graph=True, **more):
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value",
        "graphMode": "area" if graph else "none", "justifyMode": "auto", "orientation": "auto",
        "textMode": more.pop("text", "auto"),
        "wideLayout": True, "showPercentChange": False,
    }
    return panel("stat", title, description, [query], (width, height), not graph, unit, thresholds, options=options, **more)


def series(title, description, queries, unit, thresholds, width=12, height=8, colors=None, fill=0, dashed=(), **more):
    """Lines over time. `colors` fixes the colour of a legend, `dashed` lists the legends of reference lines."""
    custom = {
        "drawStyle": "line", "lineInterpolation": "linear", "lineWidth": 2, "fillOpacity": fill, "showPoints": "never",
        "spanNulls": False, "thresholdsStyle": {"mode": more.pop("lines", "off")}, "axisSoftMin": 0,
        "stacking": {"mode": "none", "group": "A"},
    }
    custom.update(more.pop("custom", {}))
    overrides = more.pop("overrides", [])
    for legend, color in (colors or {}).items():
        overrides.append(override(legend, [("color", {"mode": "fixed", "fixedColor": color})]))
    for legend in dashed:
        style = [("custom.lineStyle", {"fill": "dash", "dash": [8, 6]}), ("custom.lineWidth", 1)]
        overrides.append(override(legend, style))
    options = {
        "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel("timeseries", title, description, queries, (width, height), False, unit, thresholds, options=options,
                 custom=custom, overrides=overrides, color={"mode": "palette-classic"}, **more)


def override(legend, properties):
    return {
        "matcher": {"id": "byRegexp" if legend.startswith("/") else "byName", "options": legend},
        "properties": [{"id": name, "value": value} for name, value in properties],
    }


def bars(title, description, query, unit, thresholds, width=8, height=8, **more):
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "displayMode": "basic",
        "orientation": "horizontal", "valueMode": "color", "showUnfilled": True, "namePlacement": "auto",
        "sizing": "auto", "minVizWidth": 8, "minVizHeight": 16, "maxVizHeight": 300,
    }
    return panel("bargauge", title, description, [query], (width, height), True, unit, thresholds, options=options, **more)


def timeline(title, description, queries, states, width=24, height=6):
    """States over time: values are numbers, `states` says what they mean."""
    options = {
        "mergeValues": True, "showValue": "auto", "alignValue": "left", "rowHeight": 0.85,
        "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return panel("state-timeline", title, description, queries, (width, height), False, "none", [(None, "text")],
                 options=options, mappings=words(states), custom={"fillOpacity": 75, "lineWidth": 0})


def table(title, description, queries, columns, width=24, height=8, sort=None):
    """One row for each set of labels that the queries share. `columns`: label or query column -> (header, properties),
    in order; everything else is left out."""
    order, rename, overrides = {}, {}, []
    source = {q.column: f"Value #{chr(ord('A') + i)}" for i, q in enumerate(queries)}
    if len(queries) == 1:
        source = {queries[0].column: "Value"}
    for i, (key, (header, properties)) in enumerate(columns.items()):
        field = source.get(key, key)
        order[field], rename[field] = i, header
        if properties:
            overrides.append(override(header, list(properties.items())))
    options = {
        "showHeader": True, "cellHeight": "sm", "frameIndex": 0,
        "sortBy": [{"displayName": sort, "desc": True}] if sort else [],
    }
    transformations = [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": {}, "indexByName": order, "renameByName": rename}},
        {"id": "filterFieldsByName", "options": {"include": {"names": [header for header, _ in columns.values()]}}},
    ]
    return panel("table", title, description, queries, (width, height), True, "none", [(None, "text")], options=options,
                 custom={"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False}, overrides=overrides,
                 transformations=transformations, table=True, noValue="–")


def row(title):
    return {"type": "row", "title": title, "collapsed": False, "panels": [], "size": (24, 1), "queries": []}


def unit(name, decimals=None, thresholds=None, mapping=None):
    """Properties of a table's column."""
    properties = {"unit": name}
    if decimals is not None:
        properties["decimals"] = decimals
    if thresholds is not None:
        properties["thresholds"] = steps(thresholds)
        properties["custom.cellOptions"] = {"type": "color-text"}
    if mapping is not None:
        properties["mappings"] = words(mapping)
        properties["custom.cellOptions"] = {"type": "color-text"}
    return properties


def variable(name, label, query, multi=True, description="", within=False):
    """A choice of label values; one or several, and then all. `within`: all means all that the query found, as where it
    goes by another variable, and not whatever there is."""
    everything = {"selected": True, "text": ["All"], "value": ["$__all"]}
    first = {"selected": False, "text": "", "value": ""}
    return {
        "name": name, "label": label, "type": "query", "description": description, "datasource": DATASOURCE,
        "query": {"query": query, "refId": f"variable-{name}", "qryType": 5}, "refresh": 2, "sort": 3,
        "multi": multi, "includeAll": multi, "hide": 0, "skipUrlSync": False, "regex": "", "options": [],
        "current": everything if multi else first, **({"allValue": ".*"} if multi and not within else {}),
    }


def dashboard(uid, title, description, variables, panels, since="now-24h"):
    """All of a dashboard as Grafana reads it; panels are placed in rows of 24 columns, in order."""
    datasource = {
        "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "regex": "",
        "refresh": 1, "hide": 0, "multi": False, "includeAll": False, "skipUrlSync": False, "options": [],
        "current": {"selected": False, "text": "default", "value": "default"},
    }
    placed, x, y, tallest = [], 0, 0, 0
    for number, one in enumerate(panels, 1):
        width, height = one["size"]
        if x + width > 24:
            x, y, tallest = 0, y + tallest, 0
        kept = {k: v for k, v in one.items() if k not in ("size", "queries")}
        placed.append({"id": number, **kept, "gridPos": {"x": x, "y": y, "w": width, "h": height}})
        x, tallest = x + width, max(tallest, height)
    return {
        "id": None, "uid": uid, "title": title, "description": description, "tags": ["wattune"], "schemaVersion": 39,
        "version": 1, "editable": True, "graphTooltip": 1, "refresh": "30s", "timezone": "", "weekStart": "",
        "fiscalYearStartMonth": 0, "time": {"from": since, "to": "now"},
        "timepicker": {"refresh_intervals": ["10s", "30s", "1m", "5m", "15m"]},
        "annotations": {"list": []},
        "links": [{
            "title": "wattune", "type": "dashboards", "tags": ["wattune"], "asDropdown": False, "includeVars": True,
            "keepTime": True, "targetBlank": False, "icon": "external link", "tooltip": "", "url": "",
        }],
        "templating": {"list": [datasource, *variables]},
        "panels": placed,
    }
