"""Fixtures of the framework tests."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True

from listener import Listener  # noqa: E402
from scene import Scene  # noqa: E402


@pytest.fixture
def listener(tmp_path):
    """What a training process finds under `wattune run`."""
    with Listener(tmp_path) as listener:
        yield listener


@pytest.fixture(scope="session", autouse=True)
def scene(request, tmp_path_factory):
    """All runs of test_runs.py, which begin now: they take minutes and mostly sleep."""
    wanted = any(item.path.name == "test_runs.py" for item in request.session.items)
    with Scene(tmp_path_factory.mktemp("scene"), begin=wanted) as scene:
        yield scene
