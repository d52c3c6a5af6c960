"""A network of namespaces whose wires can be cut, one way each: on Linux, as root.

All hosts are on one bridge. A wire is cut at the end that sends: its neighbour there gets a wrong address, so that
frames go nowhere, without a word to anybody; no packet filter is needed.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from types import TracebackType
from typing import Self

import pytest

from reach.testing.services import Place

NOWHERE = "02:00:00:00:00:fe"
_numbers = itertools.count(1)


class Network:
    """See the module. The test itself is the host `here`."""

    def __init__(self) -> None:
        number = os.getpid() * 16 % 65_000 + next(_numbers)
        self._name = f"rt{number}"
        self._subnet = f"10.{100 + number // 256 % 100}.{number % 256}"
        self._hosts = {"here": f"{self._subnet}.1"}

    def __enter__(self) -> Self:
        if sys.platform != "linux" or shutil.which("ip") is None or os.geteuid():
            pytest.skip("NOT TESTED: cut networks need Linux, iproute2 and root")
        try:
            _ip("link", "add", self._name, "type", "bridge")
            _ip("addr", "add", f"{self._hosts['here']}/24", "dev", self._name)
            _ip("link", "set", self._name, "up")
            self.add("first")
        except subprocess.CalledProcessError as error:
            self.close()
            pytest.skip(f"NOT TESTED: networks cannot be made here: {error.stderr.decode().strip()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Takes all of it away. What runs there must have ended."""
        for host in self._hosts.keys() - {"here"}:
            subprocess.run(["ip", "netns", "del", self._space(host)], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", self._name], check=False, capture_output=True)

    def _space(self, host: str) -> str:
        return f"{self._name}-{host}"

    def _device(self, host: str) -> tuple[list[str], str]:
        return ([], self._name) if host == "here" else (["-n", self._space(host)], "wire")

    def add(self, host: str) -> str:
        """Makes a host; returns its address."""
        number = len(self._hosts) + 1
        address = self._hosts[host] = f"{self._subnet}.{number}"
        space, plug = self._space(host), f"{self._name}p{number}"
        _ip("netns", "add", space)
        _ip("link", "add", plug, "type", "veth", "peer", "name", "wire", "netns", space)
        _ip("link", "set", plug, "master", self._name, "up")
        _ip("-n", space, "addr", "add", f"{address}/24", "dev", "wire")
        for device in ("lo", "wire"):
            _ip("-n", space, "link", "set", device, "up")
        return address

    def address(self, host: str) -> str:
        """Of a host."""
        return self._hosts[host]

    def place(self, host: str) -> Place:
        """Makes a host for a service."""
        return Place(self.add(host), self.within(host))

    def within(self, host: str) -> list[str]:
        """The command that runs others on a host."""
        return ["ip", "netns", "exec", self._space(host)]

    def cut(self, source: str, target: str) -> None:
        """What `source` sends to `target` goes nowhere from now on; the other way it still goes."""
        where, device = self._device(source)
        _ip(*where, "neigh", "replace", self._hosts[target], "lladdr", NOWHERE, "dev", device, "nud", "permanent")

    def mend(self, source: str, target: str) -> None:
        """It arrives again."""
        where, device = self._device(source)
        _ip(*where, "neigh", "del", self._hosts[target], "dev", device)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
