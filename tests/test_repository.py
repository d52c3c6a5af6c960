"""What the tree itself promises: no traces of one machine, short files, imports one way, pinned dependencies."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 400
# Put together from pieces, so that this file does not find itself.
MACHINE_PATH = re.compile(r"(?<![\w.~$}/-])/(?:" + "|".join(("work", "root", "home/[a-z]+")) + r")/")
DOWNLOAD_ADDRESS = re.compile(
    "|".join(
        (
            r"files\.python" + r"hosted\.org",
            r"py" + r"pi\.org/simple",
            r"registry\.npm" + r"js\.org",
            r"proxy\.go" + r"lang\.org",
            r"(?:extra-)?index" + r"[-_]url",
            r"find" + r"-links",
            r'"resol' + r'ved":\s*"http',
        )
    ),
    re.IGNORECASE,
)


def tree() -> list[Path]:
    """All files of the repository: what git knows, and what it would add."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git work tree")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(path for name in names.split("\0") if name and (path := ROOT / name).is_file())


def texts() -> list[tuple[Path, str]]:
    found = []
    for path in tree():
        data = path.read_bytes()
        if b"\0" not in data:
            found.append((path.relative_to(ROOT), data.decode()))
    return found


def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("pattern", [MACHINE_PATH, DOWNLOAD_ADDRESS], ids=["machine path", "download address"])
def test_no_file_tells_of_one_machine(pattern):
    found = [
        f"{path}:{number}: {line.strip()[:120]}"
        for path, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_the_patterns_find_what_they_are_for():
    for bad in (
        "cd /wo" + "rk/main",
        '"/ro' + 'ot/.cache"',
        "--index" + "-url=x",
        "https://files.python" + "hosted.org/x",
    ):
        assert MACHINE_PATH.search(bad) or DOWNLOAD_ADDRESS.search(bad), bad
    for good in ("docs/wo" + "rk/x", "https://example.org/ro" + "ot/", "./wo" + "rk/"):
        assert not MACHINE_PATH.search(good), good


def test_files_of_the_package_stay_short():
    lengths = {path: len(path.read_text().splitlines()) for path in (ROOT / "reach").rglob("*.py")}
    assert {str(path.relative_to(ROOT)): length for path, length in lengths.items() if length > MAX_LINES} == {}


def test_imports_go_one_way_and_the_core_stays_pure():
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    finished = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout


def test_make_help_lists_every_target():
    makefile = (ROOT / "Makefile").read_text()
    targets = {target for line in re.findall(r"^\.PHONY:(.*)$", makefile, re.MULTILINE) for target in line.split()}
    declared = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    assert targets == declared
    finished = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True)
    assert set(re.findall(r"^  make ([a-z-]+) +\S", finished.stdout, re.MULTILINE)) == targets


def direct_dependencies() -> list[Requirement]:
    project = pyproject()["project"]
    return [Requirement(text) for text in [*project["dependencies"], *project["optional-dependencies"]["dev"]]]


def test_every_dependency_is_pinned_within_its_bounds():
    versions = {canonicalize_name(name): version for name, version in pins().items()}
    for requirement in direct_dependencies():
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not in constraints.txt: run `make constraints`"
        assert requirement.specifier.contains(version, prereleases=True), f"{requirement} against {version}"


def test_indirect_dependencies_are_pinned_too():
    versions = {canonicalize_name(name) for name in pins()}
    waiting = [(item, extra) for item in direct_dependencies() for extra in ("", *item.extras)]
    seen = set()
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        assert name in versions, f"{name} is not in constraints.txt: run `make constraints`"
        for item in map(Requirement, requires(name) or ()):
            if item.marker is None or item.marker.evaluate({"extra": extra}):
                waiting.extend((item, extra) for extra in ("", *item.extras))


def test_constraints_hold_names_and_versions_only():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    wrong = [line for line in lines if not re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", line)]
    assert wrong == []


def test_every_dependency_says_why_it_is_there():
    documented = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "dependencies.md").read_text(), re.MULTILINE)
    assert len(documented) == len(set(documented))
    assert set(documented) == {requirement.name for requirement in direct_dependencies()} | {"hatchling"}


def test_lower_bounds_admit_the_generated_code():
    """Generated code refuses a protobuf or grpcio older than its generator, so these are the true lower bounds."""
    bounds = {item.name: str(item.specifier) for item in direct_dependencies()}
    folder = ROOT / "gen" / "python"
    messages = {
        version
        for path in folder.rglob("*_pb2.py")
        for version in re.findall(r"^# Protobuf Python Version: (\S+)$", path.read_text(), re.MULTILINE)
    }
    stubs = {
        version
        for path in folder.rglob("*_pb2_grpc.py")
        for version in re.findall(r"^GRPC_GENERATED_VERSION = '(\S+)'$", path.read_text(), re.MULTILINE)
    }
    assert {f">={version}" for version in messages} == {bounds["protobuf"]}
    assert {f">={version}" for version in stubs} == {bounds["grpcio"]}
