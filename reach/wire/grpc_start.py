"""How gRPC's core begins in our processes: without its own threads between the network and the loop.

By default (gRPC 1.85) what comes from the network goes from a thread of the event engine to the thread that polls for
Python, and from there to the loop: each frame wakes three threads. Without the event engine on connections the polling
thread reads the network itself. Measured with one volatile task in flight: 8 instead of 14 switches of threads per task
in the server, 0.72 instead of 1.14 ms of its CPU, and 1.5 times the rate.

gRPC reads the choice once, when it is loaded. Whoever sets the variable, or imports grpc before us, keeps what they
chose; and another gRPC than those that were tested is left as it is. The variable does not stay set, for children may
have a gRPC that knows nothing of it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Final

VARIABLE: Final = "GRPC_EXPERIMENTS"
CHOICE: Final = "-event_engine_client,-event_engine_listener"
TESTED: Final = ("1.85.",)
"""Versions of grpcio that know the choice and passed our tests with it."""


def version() -> str:
    """The version of gRPC that an import would load, by the folder that its wheel left beside it; empty if there is
    none. `importlib.metadata` would know too, but to load that takes a tenth of the time that the SDK takes."""
    spec = importlib.util.find_spec("grpc")
    if spec is None or spec.origin is None:
        return ""
    found = Path(spec.origin).parent.parent.glob("grpcio-*.dist-info")
    return next((one.name.removesuffix(".dist-info").partition("-")[2] for one in found), "")


def start() -> bool:
    """Loads gRPC so, unless somebody chose otherwise. Whether it did."""
    if "grpc" in sys.modules or VARIABLE in os.environ:
        return False
    if not version().startswith(TESTED):
        return False
    os.environ[VARIABLE] = CHOICE
    try:
        importlib.import_module("grpc")
    finally:
        del os.environ[VARIABLE]
    return True


start()
