"""Generates gen/python from protos/: messages, gRPC stubs, their types, and the comments of the public contract.

    python tools/gen.py            write gen/python anew
    python tools/gen.py --check    fail, and say where, if gen/python is not what would be written

The output depends on protos/ and on the versions in constraints.txt only. --protos and --out name other folders.
"""

import argparse
import filecmp
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc_tools
from google.protobuf import descriptor_pb2

ROOT = Path(__file__).resolve().parent.parent
WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"
PACKAGE = "agentreach"
PUBLIC = "agentreach.v1"
COMMENTS = Path(*PUBLIC.split(".")) / "comments.json"
"""What the contract says of each message, field, enum, value and method, by its name without the package: descriptors
have no comments."""
SERVICE = re.compile(r"^service\s", re.MULTILINE)


def generate(protos: Path, out: Path) -> None:
    """Writes the package for all .proto files under protos into the existing folder out."""
    sources = sorted(path.relative_to(protos) for path in protos.rglob("*.proto"))
    if not sources:
        raise SystemExit(f"no .proto file under {protos}")
    services = [path for path in sources if SERVICE.search((protos / path).read_text())]
    scripts = Path(sys.executable).parent
    run_protoc(
        protos,
        sources,
        f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
        f"--python_out={out}",
        f"--mypy_out=quiet:{out}",
    )
    if services:
        run_protoc(
            protos,
            services,
            f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
            f"--grpc_python_out={out}",
            f"--mypy_grpc_out=quiet:{out}",
        )
    comments = dict(sorted(comments_of(protos, [path for path in sources if path.parent == COMMENTS.parent])))
    (out / COMMENTS).parent.mkdir(parents=True, exist_ok=True)
    (out / COMMENTS).write_text(json.dumps(comments, ensure_ascii=False, indent=0) + "\n")
    for folder in [out / PACKAGE, *(path for path in (out / PACKAGE).rglob("*") if path.is_dir())]:
        name = ".".join(folder.relative_to(out).parts)
        (folder / "__init__.py").write_text(f'"""{name}: generated from protos/ by `make gen`; never edited."""\n')
    (out / PACKAGE / "py.typed").touch()


def comments_of(protos: Path, sources: list[Path]) -> Iterator[tuple[str, str]]:
    """Names and comments of these files, with line breaks only where a list or a paragraph begins."""
    if not sources:
        return
    with tempfile.NamedTemporaryFile() as file:
        run_protoc(protos, sources, f"--descriptor_set_out={file.name}", "--include_source_info")
        found = descriptor_pb2.FileDescriptorSet.FromString(Path(file.name).read_bytes())
    for one in found.file:
        for location in one.source_code_info.location:
            if location.leading_comments and len(location.path) > 1:
                yield name_at(one, list(location.path)), one_line(location.leading_comments)


def name_at(file: descriptor_pb2.FileDescriptorProto, path: list[int]) -> str:
    """The name of what lies at a path of `source_code_info`: pairs of a field's number and a place in it."""
    here: Any = file
    names = []
    for number, place in zip(path[::2], path[1::2], strict=True):
        here = getattr(here, here.DESCRIPTOR.fields_by_number[number].name)[place]
        names.append(here.name)
    return ".".join(names)


def one_line(comment: str) -> str:
    """A comment as running text."""
    return " ".join(comment.split())


def run_protoc(protos: Path, sources: list[Path], *options: str) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{protos}", f"-I{WELL_KNOWN}", *options]
    finished = subprocess.run([*command, *map(str, sources)], check=False)
    if finished.returncode:
        raise SystemExit("protoc failed")


def files_below(folder: Path) -> set[Path]:
    return {
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.relative_to(folder).parts
    }


def differences(wanted: Path, found: Path) -> list[str]:
    """Returns one line for each file that is missing, left over or different, sorted by path."""
    lines = []
    for path in sorted(files_below(wanted) | files_below(found)):
        if not (found / path).exists():
            lines.append(f"missing: {path}")
        elif not (wanted / path).exists():
            lines.append(f"left over: {path}")
        elif not filecmp.cmp(wanted / path, found / path, shallow=False):
            lines.append(f"different: {path}")
    return lines


def replace(wanted: Path, found: Path) -> None:
    """Makes found equal to wanted; files that are equal already keep their times."""
    for line in differences(wanted, found):
        path = line.split(": ", 1)[1]
        target = found / path
        if line.startswith("left over"):
            target.unlink()
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((wanted / path).read_bytes())
        print(line.replace("missing", "new").replace("left over", "removed"))


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate gen/python from protos/.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--protos", type=Path, default=ROOT / "protos")
    parser.add_argument("--out", type=Path, default=ROOT / "gen" / "python")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder)
        generate(arguments.protos, wanted)
        if not arguments.check:
            replace(wanted, arguments.out)
            return 0
        lines = differences(wanted, arguments.out)
    if lines:
        print("gen/python is not what protos/ says; run `make gen` and commit:", *lines, sep="\n  ", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
