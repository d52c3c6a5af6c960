"""`make cluster`: a cluster for development, as processes on this machine, until Ctrl-C.

Three nodes, three members of etcd and PostgreSQL, from the system's packages, on loopback, without passwords. A node
that ends is started again after some seconds: kill one, and see what the others do. Its data stays in the folder.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import Final

from reach.testing.cluster import BASE, LocalCluster, NotInstalled

RESTART_SECONDS: Final = 5.0
"""How long a node that has ended stays away: longer than it takes the others to take over what it owned."""
LOOK_SECONDS: Final = 0.1


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0 after Ctrl-C, 1 if it cannot be started, 3 if a program is not installed."""
    chosen = _parser().parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # SIGINT too: a shell's background ignores it
        signal.signal(number, signal.default_int_handler)
    cluster = None
    try:
        cluster = LocalCluster(
            chosen.data, nodes=chosen.nodes, members=chosen.members, base=chosen.base, free=chosen.free
        )
        print(f"starting {chosen.nodes} nodes, {chosen.members} members of etcd, PostgreSQL", flush=True)
        cluster.start()
        print(_page(cluster), flush=True)
        _watch(cluster)
    except KeyboardInterrupt:
        print("stopping", flush=True)
    except NotInstalled as absent:
        print(f"make cluster: {absent}", file=sys.stderr)
        return 3
    except RuntimeError as error:
        print(f"make cluster: {error}", file=sys.stderr)
        return 1
    finally:
        if cluster is not None:
            cluster.stop()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m reach.testing.cluster", description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=Path(".cluster"), help="folder of data and logs (default: .cluster)"
    )
    parser.add_argument("--nodes", type=int, default=3, choices=range(1, 9), metavar="1..8", help="nodes (default: 3)")
    parser.add_argument("--members", type=int, default=3, choices=(1, 3), help="members of etcd (default: 3)")
    parser.add_argument("--base", type=int, default=BASE, help="ports: gRPC BASE+1..., HTTP BASE-99... (default: 8900)")
    parser.add_argument("--free", action="store_true", help="take free ports; needs a new folder")
    return parser


def _page(cluster: LocalCluster) -> str:
    """Where everything is, and what to do with it."""
    lines = []
    for name, node in cluster.nodes.items():
        url = f"http://127.0.0.1:{node.admin_port}/readyz"
        lines.append(f"  node {name}      {node.address}   {url}   pid {node.pid}")
    lines.append(f"  etcd        {', '.join(cluster.etcd.endpoints)}")
    lines.append(f"  PostgreSQL  {cluster.postgres.address('reach')}")
    lines.append(f"  logs, data  {cluster.folder}; cluster.json there has all of this, for programs")
    lines.append("Use it, in another terminal:")
    lines.append(f"  export AGENT_REACH_ADDR={','.join(cluster.addresses)}    # any node takes any call")
    lines.append(f"  reach demo --server {','.join(cluster.addresses)}")
    first = next(iter(cluster.nodes.values()))
    lines.append(
        f"  kill -9 {first.pid}    # the other nodes take over; it is started again {RESTART_SECONDS:g} s later"
    )
    lines.append("Ctrl-C stops everything; the data stays, and the next `make cluster` goes on with it.")
    return "\n".join(lines)


def _watch(cluster: LocalCluster) -> None:
    """Starts nodes again that end, for ever."""
    ended: dict[str, float] = {}
    while True:
        time.sleep(LOOK_SECONDS)  # nobody tells that one has ended
        for name, node in cluster.nodes.items():
            if node.running:
                continue
            if name not in ended:
                ended[name] = time.monotonic()
                print(f"node {name} has ended; see {node.log}", flush=True)
            elif time.monotonic() - ended[name] >= RESTART_SECONDS:
                del ended[name]
                cluster.restart(name)
                print(f"node {name} is started again: pid {node.pid}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
