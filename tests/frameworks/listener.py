"""Stands in for `wattune run` where only the hook is tested: the hook's folder, the variables and the socket."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import threading

HOOKS = pathlib.Path(__file__).resolve().parents[2] / "clients" / "hooks"
SCRIPTS = pathlib.Path(__file__).resolve().parent / "scripts"
LIMIT_S = 120


def environment(**more):
    """Returns the environment of scripts: one thread, since results may differ with their number."""
    plain = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    plain["PYTHONDONTWRITEBYTECODE"] = "1"  # nothing appears in the repository
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "WATTUNE_"))}
    return {**kept, **plain, **more}


class Ran:
    """How a script ended, what it printed, and the messages that came."""

    def __init__(self, completed, messages):
        self.code, self.out, self.err = completed.returncode, completed.stdout, completed.stderr
        self.messages = messages

    def of(self, source, pid=None):
        """Returns the messages of one source, and of one process if there are several."""
        return [m for m in self.messages if m["source"] == source and pid in (None, m["pid"])]

    def last_steps(self, source):
        """Returns the last count of one source, of which all messages must be of one process and in order."""
        messages = self.of(source)
        assert messages, f"no message of {source}: {self.messages} {self.err}"
        assert len({m["pid"] for m in messages}) == 1, messages
        for earlier, later in zip(messages, messages[1:]):
            assert earlier["at_s"] <= later["at_s"] and earlier["steps"] < later["steps"], messages
        return messages[-1]["steps"]


class Listener:
    """A socket for progress, and a copy of the hook's folder as `wattune run` makes it for each run."""

    def __init__(self, folder):
        self.hooks = folder / "hooks"
        shutil.copytree(HOOKS, self.hooks, ignore=shutil.ignore_patterns("__pycache__"))
        self.path, self.messages = folder / "progress", []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.socket.settimeout(0.2)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def variables(self, **more):
        """Returns the environment that `wattune run` gives its command."""
        path = [str(self.hooks), *filter(None, [more.pop("PYTHONPATH", None)])]
        return environment(WATTUNE_PROGRESS_SOCKET=str(self.path), PYTHONPATH=os.pathsep.join(path), **more)

    def run(self, script, *arguments, flags=(), listen=True, **variables):
        """Runs Python code, or a file, and returns how it ended and what was heard."""
        ended = threading.Event()
        ear = threading.Thread(target=self._listen, args=(ended,))
        if listen:
            ear.start()
        try:
            completed = run(script, *arguments, flags=flags, variables=self.variables(**variables))
        finally:
            ended.set()
            if listen:
                ear.join()
        return Ran(completed, self.messages)

    def _listen(self, ended):
        while True:
            try:
                self.messages.append(json.loads(self.socket.recv(65536)))
            except TimeoutError:
                if ended.is_set():
                    return


def run(script, *arguments, flags=(), variables=None):
    """Runs Python code, or a file, to its end."""
    code = [str(script)] if isinstance(script, pathlib.Path) else ["-c", script]
    command = [sys.executable, *flags, *code, *map(str, arguments)]
    variables = environment() if variables is None else variables
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=LIMIT_S)
