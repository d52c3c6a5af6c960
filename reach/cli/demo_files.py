"""What `reach demo` sends: real files, and questions to the report agent."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from reach.cli.terminal import one_line, say

TEXT_SUFFIXES: Final = frozenset({".md", ".markdown", ".txt", ".rst", ".text", ""})
SOURCE_SUFFIXES: Final = frozenset({".py", ".pyi"})
MOST_FILES: Final = 24
MOST_BYTES: Final = 1 << 20
LONG_SENTENCES: Final = 12
"""The summary that is interrupted has so many sentences: long enough to be in the middle of it for a while."""
_DOCUMENTS: Final = 5
_SOURCES: Final = 6
_QUESTIONS: Final = (
    "total revenue by region in 2025",
    "top 3 products by quantity",
    "which region had the highest average order value in Q4 2024",
    "return rate by product",
)
_SKIPPED_FOLDERS: Final = frozenset({"node_modules", "__pycache__", "venv", "build", "dist"})


@dataclass(slots=True)
class Job:
    """One task of the demo."""

    title: str
    payload: Any
    options: dict[str, Any] = field(default_factory=dict)
    """Who may take it."""
    shown_lines: int = 14
    """Lines of its answer that are shown; it may have thousands."""
    interrupted: bool = False
    """The instance that works on it is to be killed."""


def jobs_for(paths: Sequence[str]) -> list[Job]:
    """The tasks for the files given, else for our own documents and source. The first is the one to be interrupted."""
    documents, sources = _given(paths) if paths else _own()
    documents.sort(key=lambda item: -_sentences(item[1]))
    if not documents or _sentences(documents[0][1]) < LONG_SENTENCES:
        documents.insert(0, _long_document())
    jobs = []
    for number, (title, text) in enumerate(documents):
        payload = text if number else {"text": text, "sentences": LONG_SENTENCES}
        options = {"capability": "summarization", "timeout_class": "document"}
        jobs.append(Job(title, payload, options, interrupted=not number))
    for title, text in sources:
        jobs.append(Job(title, text, {"capability": "code_review", "timeout_class": "code"}))
    jobs.extend(Job(text, text, {"agent_id": "order-reports"}, shown_lines=1) for text in _QUESTIONS)
    return jobs


def _given(paths: Sequence[str]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    documents: list[tuple[str, str]] = []
    sources: list[tuple[str, str]] = []
    for path, explicit in _files(paths):
        text = _read(path)
        if text is None:
            continue
        if path.suffix.lower() in SOURCE_SUFFIXES:
            sources.append(("/".join(path.parts[-2:]), text))
        elif explicit or _sentences(text):
            documents.append(("/".join(path.parts[-2:]), text))
        if len(documents) + len(sources) >= MOST_FILES:
            say(f"only the first {MOST_FILES} files are sent")
            break
    if not documents and not sources:
        raise click.UsageError("There is no text, Markdown or Python file that can be read in what was given.")
    return documents, sources


def _files(paths: Sequence[str]) -> Iterator[tuple[Path, bool]]:
    """The files, those of folders too; with it whether a file was named itself."""
    for name in paths:
        path = Path(name)
        if not path.is_dir():
            yield path, True
            continue
        for inner in sorted(path.rglob("*")):
            parts = inner.relative_to(path).parts
            hidden = any(part.startswith(".") or part in _SKIPPED_FOLDERS for part in parts)
            suffix = inner.suffix.lower()
            if not hidden and suffix and suffix in TEXT_SUFFIXES | SOURCE_SUFFIXES and inner.is_file():
                yield inner, False


def _read(path: Path) -> str | None:
    """A file as text; None, and a line that says why, if that cannot be."""
    try:
        if path.stat().st_size > MOST_BYTES:
            say(f"left out: {path} is larger than {MOST_BYTES >> 20} MiB")
            return None
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise click.UsageError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from error
    except ValueError:
        say(f"left out: {path} is not UTF-8 text")
        return None


def _own() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Documents and source of this project: of the working copy if this is one, else of the installed package."""
    package = Path(__file__).parent.parent
    root = package.parent
    documents: list[tuple[str, str]] = []
    if (root / "pyproject.toml").is_file() and (root / "docs").is_dir():
        files = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("*.md"))]
        found = [(path.name, path.read_text("utf-8", "replace")) for path in files if path.is_file()]
        documents = [(name, text) for name, text in found if _sentences(text) >= LONG_SENTENCES // 2][:_DOCUMENTS]
    if not documents:
        documents = _installed_documents(package)
    sources = sorted(package.rglob("*.py"), key=lambda path: (-path.stat().st_size, path.name))[:_SOURCES]
    return documents, [("/".join(path.parts[-2:]), path.read_text("utf-8", "replace")) for path in sources]


def _installed_documents(package: Path) -> list[tuple[str, str]]:
    """What a package has of documents: the README in its metadata, and what its modules say of themselves."""
    from importlib.metadata import PackageNotFoundError, metadata

    documents = []
    try:
        readme = metadata("agentreach").json.get("description", "")
    except PackageNotFoundError:
        readme = ""
    if isinstance(readme, str) and _sentences(readme) >= LONG_SENTENCES // 2:
        documents.append(("README", readme))
    for folder in ("core", "runtime", "sdk", "store"):
        text = _docstrings(package / folder)
        if _sentences(text):
            documents.append((f"reach/{folder}, what its modules say", text))
    return documents


def _long_document() -> tuple[str, str]:
    return "Agent-Reach, what its modules say", _docstrings(Path(__file__).parent.parent)


def _docstrings(folder: Path) -> str:
    """What the modules under a folder say of themselves, as one document."""
    parts = []
    for path in sorted(folder.rglob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_bytes()))
        if text:
            parts.append(f"# {path.stem}\n\n{text}\n")
    return "\n".join(parts)


def _sentences(text: str) -> int:
    from reach.demo_agents.text import read_document

    return len(read_document(text).sentences)


def short_title(title: str, width: int) -> str:
    """A title in so many columns."""
    return one_line(title, width).ljust(width)
