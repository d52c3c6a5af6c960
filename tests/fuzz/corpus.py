"""The corpus: inputs that once went wrong, or stand for a kind that might. All run in CI (tests/rpc/test_corpus.py).

One file of JSON for each: `{"path": method, "what": how it came about, "frames": [base64 of each message]}`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

from tests.fuzz.hail import Input

FOLDER = Path(__file__).parent.parent / "corpus"


def load() -> dict[str, Input]:
    """All inputs, by the names of their files."""
    found: dict[str, Input] = {}
    for file in sorted(FOLDER.glob("*.json")):
        kept = json.loads(file.read_text())
        frames = tuple(base64.b64decode(frame) for frame in kept["frames"])
        found[file.stem] = Input(kept["path"], frames, kept["what"])
    return found


def keep(given: Input, why: str) -> Path:
    """Adds an input; the same one again is the same file."""
    digest = hashlib.sha256(given.path.encode() + b"\0".join(given.frames)).hexdigest()[:12]
    file = FOLDER / f"{given.path.rpartition('/')[2].lower()}-{digest}.json"
    kept = {
        "path": given.path,
        "what": f"{given.what}: {why}" if given.what else why,
        "frames": [base64.b64encode(frame).decode() for frame in given.frames],
    }
    file.write_text(json.dumps(kept, indent=1) + "\n")
    return file
