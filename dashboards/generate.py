#!/usr/bin/env python3
"""Writes the dashboards for Grafana, and the table of their queries with the range of each answer.

    dashboards/generate.py            # writes grafana/*.json and queries.json
    dashboards/generate.py --check    # fails if they are not what it would write
"""

import importlib
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "source"))
sys.dont_write_bytecode = True

NAMES = ["overview", "job", "grid", "bandit", "fleet"]


def files():
    """Path -> text of all that is generated."""
    written, queries = {}, []
    for name in NAMES:
        module = importlib.import_module(name)
        written[HERE / "grafana" / f"{name}.json"] = module.DASHBOARD
        queries += [
            {"dashboard": name, "panel": panel["title"], "expr": q.expr, "low": q.low, "high": q.high, "series": q.least}
            for panel in module.PANELS for q in panel["queries"]
        ]
    written[HERE / "queries.json"] = queries
    return {path: json.dumps(data, indent=1, ensure_ascii=False) + "\n" for path, data in written.items()}


def main():
    stale = []
    for path, text in files().items():
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
    if stale:
        sys.exit(f"not what dashboards/generate.py writes: {', '.join(stale)}; run it")


if __name__ == "__main__":
    main()
