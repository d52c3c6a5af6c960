"""The Node SDK by itself: its own tests, with node's runner, and what its files promise (API-5)."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from tests.node_sdk import NODE, SDK, needs_the_sdk

PACKAGE = json.loads((SDK / "package.json").read_text())


@needs_the_sdk
@pytest.mark.timeout(120)
def test_API_5_the_tests_of_the_node_sdk() -> None:
    files = sorted(str(path) for path in (SDK / "test").glob("*.test.js"))
    ran = subprocess.run([NODE, "--test", *files], capture_output=True, text=True, cwd=SDK, timeout=100, check=False)
    assert ran.returncode == 0, ran.stdout
    count = re.search(r"# pass (\d+)", ran.stdout)
    assert count is not None
    assert int(count[1]) > 20


def test_dependencies_of_the_node_sdk_are_pinned_and_locked() -> None:
    lock = json.loads((SDK / "package-lock.json").read_text())["packages"]
    for kind in ("dependencies", "devDependencies"):
        assert lock[""][kind] == PACKAGE[kind]
        for name, version in PACKAGE[kind].items():
            assert re.fullmatch(r"\d+\.\d+\.\d+", version), name
            assert lock[f"node_modules/{name}"]["version"] == version
    assert all("integrity" in entry for name, entry in lock.items() if name)


def test_files_of_the_node_sdk_stay_short_and_its_version_is_one() -> None:
    for path in (SDK / "src").glob("*.ts"):
        lines = path.read_text().splitlines()
        assert len(lines) <= 400, path.name
        assert max(map(len, lines)) <= 120, path.name
    assert f'VERSION = "{PACKAGE["version"]}"' in (SDK / "src" / "version.ts").read_text()
