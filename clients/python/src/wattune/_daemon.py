"""The daemon, wherever it answers: tries its addresses in order, and keeps the connection to the one that answers."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from ._http import Address, Answer, BadAnswer, Connection, Unreachable, token


class Refused(Unreachable):
    """The daemon answers, and refuses access, for example because the token is invalid."""


def describe(error: Unreachable) -> str:
    """Returns what is wrong: that the daemon refuses access, or that none answers."""
    return str(error) if isinstance(error, Refused) else f"no wattune daemon answers ({error})"


class Daemon:
    """A daemon behind one or more addresses. Used by one thread at a time."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self.addresses = tuple(addresses)
        self.pid_namespace: int | None = None
        self._connection: Connection | None = None

    def close(self) -> None:
        """Closes the connection; the next request looks at all addresses again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def request(self, method: str, path: str, body: object = None, timeout_s: float = 5.0) -> Answer:
        """Sends a request to the address that answered last, otherwise to the first one that answers.

        Raises:
            Unreachable: If no address answers; the text has what each of them said.
        """
        if self._connection is not None:
            try:
                return self._connection.request(method, path, body, timeout_s)
            except (Unreachable, BadAnswer) as error:
                self.close()
                raise Unreachable(str(error)) from error
        failures = []
        deadline = time.monotonic() + timeout_s
        for address in self.addresses:
            connection = Connection(address)
            try:
                answer = connection.request(method, path, body, deadline - time.monotonic())
            except (Unreachable, BadAnswer) as error:
                connection.close()
                failures.append(str(error))
                continue
            self._connection = connection
            return answer
        raise Unreachable("; ".join(failures) or "no address to ask")

    def fresh(self) -> None:
        """Makes the next request open a connection of its own, to the same address.

        A request on a kept connection is repeated if the daemon has closed it; a registration must not be repeated.
        """
        if self._connection is not None:
            self._connection.close()

    def look(self, timeout_s: float = 5.0) -> Any:
        """Returns the daemon's status, and notes its namespace of process ids.

        Raises:
            Refused: If the daemon refuses access.
            Unreachable: If no daemon answers, or something that is not one.
        """
        answer = self.request("GET", "/v1/status", timeout_s=timeout_s)
        if answer.status in (401, 403) and isinstance(answer.body, dict) and isinstance(answer.body.get("detail"), str):
            self.close()
            refused = "access" if token() is None else "the token"
            raise Refused(f"the daemon refuses {refused}: {answer.detail}")
        if not answer.ok or not isinstance(answer.body, dict) or not isinstance(answer.body.get("gpus"), list):
            self.close()
            raise Unreachable(f"what answers is not a wattune daemon: {answer.detail}")
        namespace = answer.body.get("pid_namespace")
        self.pid_namespace = namespace if isinstance(namespace, int) else None
        return answer.body

    def shares_pids(self) -> bool:
        """True if process ids mean the same to the daemon and to this process."""
        if self.pid_namespace is None:
            return False
        try:
            return os.stat("/proc/self/ns/pid").st_ino == self.pid_namespace
        except OSError:
            return False
