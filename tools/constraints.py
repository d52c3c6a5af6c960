"""Writes constraints.txt: the exact versions of everything that `pip install agentreach[dev]` needs.

Run by `make constraints`. pip resolves without installing (a dry run), so the result does not depend on what the
environment at hand holds. Names and versions only: where packages come from is each user's own configuration.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Exact versions of all dependencies, direct and indirect. Written by `make constraints`.\n"


def resolve(requirement: str) -> dict[str, str]:
    """Returns name -> version of what pip would install for the requirement, itself left out."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        subprocess.run([*command, "--report", str(report), requirement], check=True, stdout=subprocess.DEVNULL)
        items = json.loads(report.read_text())["install"]
    return {item["metadata"]["name"]: item["metadata"]["version"] for item in items if not item["is_direct"]}


def main() -> None:
    pins = resolve(f"{ROOT}[dev]")
    lines = [f"{name}=={version}\n" for name, version in sorted(pins.items(), key=lambda pin: pin[0].lower())]
    (ROOT / "constraints.txt").write_text(HEADER + "".join(lines))
    print(f"constraints.txt: {len(lines)} versions")


if __name__ == "__main__":
    main()
