"""Whether the Node SDK is here and can be tested: for tests of it, which are skipped, loudly, where it is not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

SDK: Final = Path(__file__).parents[1] / "sdks" / "node"
NODE: Final = shutil.which("node") or "node"


def why_not() -> str:
    """Why it cannot be tested; empty if it can."""
    built = SDK / "dist" / "index.js"
    if shutil.which("node") is None:
        return "NO NODE"
    if not built.exists():
        return "NOT BUILT (`make node`)"
    if max(path.stat().st_mtime for path in (SDK / "src").rglob("*.ts")) > built.stat().st_mtime:
        return "BUILT OF OTHER SOURCES (`make node`)"
    return ""


needs_the_sdk: Final = pytest.mark.skipif(bool(why_not()), reason=f"{why_not()}: THE NODE SDK IS NOT TESTED")
