"""What the fault tests themselves rely on."""

from __future__ import annotations

import fcntl

from tests.e2e.processes import LOCKS, free_port


def test_no_other_process_of_tests_gets_a_port_while_this_one_lives() -> None:
    """Several run at once, and a port is free for a moment whenever its server is killed."""
    ports = [free_port() for _ in range(3)]
    assert len(set(ports)) == 3
    for port in ports:
        with (LOCKS / str(port)).open("w") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
        raise AssertionError(f"port {port} could be another's")
