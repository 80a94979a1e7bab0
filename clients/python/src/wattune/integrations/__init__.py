"""Callbacks for training frameworks. Each module needs its framework; importing `wattune` needs none."""
