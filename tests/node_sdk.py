"""Whether the Node SDK is here and can be tested: for tests of it, which are skipped, loudly, where it is not."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Final

import pytest

SDK: Final = Path(__file__).parents[1] / "sdks" / "node"
NODE: Final = shutil.which("node") or "node"


def why_not() -> str:
    """Why it cannot be tested; empty if it can."""
    built_of = SDK / "dist" / "sources.sha256"
    if shutil.which("node") is None:
        return "NO NODE"
    if not built_of.exists():
        return "NOT BUILT (`make node`)"
    protos = SDK.parents[1] / "protos" / "agentreach" / "v1"
    sources = b"".join(path.read_bytes() for path in (*sorted(SDK.glob("src/*.ts")), *sorted(protos.glob("*.proto"))))
    if hashlib.sha256(sources).hexdigest() != built_of.read_text().strip():
        return "BUILT OF OTHER SOURCES (`make node`)"
    return ""


needs_the_sdk: Final = pytest.mark.skipif(bool(why_not()), reason=f"{why_not()}: THE NODE SDK IS NOT TESTED")
