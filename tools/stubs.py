"""Generates stubs of the public contract for a language: `python tools/stubs.py go` writes build/stubs/go.

The protoc of grpcio-tools (`make setup`) does it, with the plugin that the language needs; where that is not here, the
message says how to get it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import google.rpc.status_pb2  # type: ignore[import-untyped]
import grpc_tools

ROOT: Final = Path(__file__).resolve().parent.parent
PROTOS: Final = ROOT / "protos"
CONTRACT: Final = "agentreach/v1"
NODE: Final = ROOT / "sdks" / "node"
GO_MODULE: Final = "example.com/agentreach-go"
"""The module that Go stubs are part of, where no other one is named: the example's."""
WELL_KNOWN: Final = Path(grpc_tools.__file__).parent / "_proto"
STATUS_PROTOS: Final = Path(google.rpc.status_pb2.__file__).parents[2]
STATUS: Final = ("google/rpc/status.proto", "google/rpc/error_details.proto")
"""What is in the details of a gRPC status."""


def sources() -> list[str]:
    """All protos of the public contract."""
    return [str(path.relative_to(PROTOS)) for path in sorted((PROTOS / CONTRACT).glob("*.proto"))]


@dataclass(frozen=True, slots=True)
class Plugin:
    """A program that protoc runs."""

    name: str
    how: str
    """How to get it."""
    where: str = ""
    """A folder of the repository to look in, too."""
    go_tool: bool = False
    """Go can build it: examples/go/go.mod says which version."""

    def find(self) -> str | None:
        """Its path."""
        near = ROOT / self.where / self.name
        if self.where and near.exists():
            return str(near)
        return shutil.which(self.name) or (self._built() if self.go_tool and shutil.which("go") else None)

    def _built(self) -> str | None:
        command = ["go", "tool", "-n", self.name]
        done = subprocess.run(command, cwd=ROOT / "examples" / "go", stdout=subprocess.PIPE, text=True, check=False)
        return done.stdout.strip() or None


@dataclass(frozen=True, slots=True)
class Language:
    """How stubs of one language are made. `{out}` in options is the folder."""

    options: Sequence[str]
    plugins: Sequence[Plugin] = ()
    also: Sequence[str] = ()
    """More protos, of others."""


def go_options(module: str) -> list[str]:
    """Where each proto goes: the protos themselves name no Go package."""
    kinds = ("go", "go-grpc")
    mapped = [f"--{kind}_opt=M{source}={module}/{CONTRACT};agentreachv1" for kind in kinds for source in sources()]
    return [*mapped, *(f"--{kind}_opt=module={module}" for kind in kinds)]


_PROTOC: Final = Plugin("protoc", "Debian's protobuf-compiler, or github.com/protocolbuffers/protobuf/releases")
"""Where grpcio-tools has no generator for a language, protoc itself has."""


def _of_grpc(language: str) -> Plugin:
    return Plugin(f"grpc_{language}_plugin", "it comes with gRPC, such as Debian's protobuf-compiler-grpc")


def _own(name: str, language: str) -> Language:
    """A language whose messages protoc makes, and whose calls gRPC's own plugin."""
    return Language([f"--{name}_out={{out}}", "--grpc_out={out}"], [_PROTOC, _of_grpc(language)])


_GO: Final = "install Go, which builds it"
LANGUAGES: Final = {
    "python": Language(["--python_out={out}", "--pyi_out={out}", "--grpc_python_out={out}"]),
    "node": Language(
        ["--es_out={out}", "--es_opt=target=ts,import_extension=js"],
        [Plugin("protoc-gen-es", "`make node`, or npm's @bufbuild/protoc-gen-es", "sdks/node/node_modules/.bin")],
        also=STATUS,
    ),
    "go": Language(
        ["--go_out={out}", "--go-grpc_out={out}"],
        [
            Plugin("protoc-gen-go", _GO, go_tool=True),
            Plugin("protoc-gen-go-grpc", _GO, go_tool=True),
        ],
    ),
    **{name: _own(name, plugin) for name, plugin in (
        ("cpp", "cpp"), ("csharp", "csharp"), ("objc", "objective_c"), ("php", "php"), ("ruby", "ruby"),
    )},
}  # fmt: skip


def main() -> int:
    """See above. Ends with 1 if something is missing without which there are no stubs."""
    parser = argparse.ArgumentParser(description="Generate stubs of the contract.")
    parser.add_argument("language", choices=sorted([*LANGUAGES, "java"]))
    parser.add_argument("--out", type=Path, help="the folder; default build/stubs/LANGUAGE")
    parser.add_argument("--module", default=GO_MODULE, help="go: the module that they are to be part of")
    arguments = parser.parse_args()
    out = (arguments.out or ROOT / "build" / "stubs" / arguments.language).resolve()
    code = java(out) if arguments.language == "java" else generate(arguments.language, out, arguments.module)
    if not code:
        print(f"stubs for {arguments.language} are in {out}")
    return code


def java(out: Path) -> int:
    """Maven fetches protoc and the plugin of gRPC by itself."""
    if lacks([Plugin("mvn", "Debian's maven, or maven.apache.org; Gradle's protobuf plugin does the same")]):
        return 1
    command = ["mvn", "-q", "-B", "-f", str(ROOT / "examples" / "java"), f"-Dstubs={out}"]
    command += ["-Dprotobuf.compiler.incremental=false", "generate-sources"]  # else none, where it made some before
    return subprocess.run(command, check=False).returncode


def generate(name: str, out: Path, module: str) -> int:
    """By protoc."""
    language = LANGUAGES[name]
    if lacks(language.plugins):
        return 1
    out.mkdir(parents=True, exist_ok=True)
    own = _PROTOC.find() if _PROTOC in language.plugins else None
    command = [own] if own else [sys.executable, "-m", "grpc_tools.protoc", f"-I{WELL_KNOWN}"]
    command += [f"-I{PROTOS}", *([f"-I{STATUS_PROTOS}"] if language.also else [])]
    command += [_option(plugin) for plugin in language.plugins if plugin is not _PROTOC]
    command += [option.format(out=out) for option in language.options]
    command += go_options(module) if name == "go" else []
    return subprocess.run([*command, *sources(), *language.also], check=False).returncode


def lacks(plugins: Sequence[Plugin]) -> bool:
    """Whether one is not here; says how to get it."""
    missing = [plugin for plugin in plugins if plugin.find() is None]
    for one in missing:
        print(f"{one.name} is not here: {one.how}", file=sys.stderr)
    return bool(missing)


def _option(plugin: Plugin) -> str:
    """How protoc is told of it; gRPC's own plugins are all called `grpc`."""
    name = "protoc-gen-grpc" if plugin.name.startswith("grpc_") else plugin.name
    return f"--plugin={name}={plugin.find()}"


if __name__ == "__main__":
    sys.exit(main())
