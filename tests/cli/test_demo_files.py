"""What the demo sends."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import click
import pytest

from reach.cli import demo_files
from reach.cli.demo_files import LONG_SENTENCES, jobs_for
from reach.cli.demo_show import Track, figures_of
from reach.demo_agents.text import read_document

PROSE = " ".join(f"Sentence number {number} says something about reach and agents." for number in range(30))


def titles(paths: list[Path]) -> list[str]:
    return [job.title for job in jobs_for([str(path) for path in paths]) if "agent_id" not in job.options]


def test_our_own_files_without_paths() -> None:
    jobs = jobs_for([])
    kinds = [job.options.get("capability", job.options.get("agent_id")) for job in jobs]
    assert kinds.count("summarization") >= 2
    assert kinds.count("code_review") >= 3
    assert kinds.count("order-reports") >= 3
    assert [job.interrupted for job in jobs] == [True] + [False] * (len(jobs) - 1)
    for job in jobs:
        assert len(job.payload if isinstance(job.payload, str) else json.dumps(job.payload)) < 1 << 20


def test_the_first_one_is_long_enough_to_be_interrupted() -> None:
    job = jobs_for([])[0]
    assert job.payload["sentences"] == LONG_SENTENCES
    assert len(read_document(job.payload["text"]).sentences) >= LONG_SENTENCES


def test_files_go_where_their_kind_says(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(PROSE)
    (tmp_path / "b.py").write_text("x = 1\n")
    (tmp_path / "c.txt").write_text("One sentence only.")
    jobs = jobs_for([str(tmp_path / name) for name in ("b.py", "c.txt", "a.md")])
    assert [(job.title.rpartition("/")[2], job.options.get("capability")) for job in jobs[:3]] == [
        ("a.md", "summarization"),
        ("c.txt", "summarization"),
        ("b.py", "code_review"),
    ]


def test_a_long_document_is_added_where_none_was_given(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text("x = 1\n")
    jobs = jobs_for([str(tmp_path / "b.py")])
    assert jobs[0].interrupted
    assert len(read_document(jobs[0].payload["text"]).sentences) >= LONG_SENTENCES


def test_folders_are_searched(tmp_path: Path) -> None:
    for name in ("a.md", "in/b.py", ".git/c.md", "node_modules/d.md", "in/e.png", "in/empty.txt", "in/no_suffix"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("" if "empty" in name else PROSE if name.endswith("md") else "x = 1")
    assert [title.rpartition("/")[2] for title in titles([tmp_path])] == ["a.md", "b.py"]


def test_what_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(click.UsageError, match="Cannot read"):
        jobs_for([str(tmp_path / "none.md")])
    (tmp_path / "binary.md").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(click.UsageError, match="no text, Markdown or Python"):
        jobs_for([str(tmp_path / "binary.md")])
    assert "is not UTF-8" in capsys.readouterr().err
    monkeypatch.setattr(demo_files, "MOST_FILES", 2)
    for number in range(3):
        (tmp_path / f"{number}.py").write_text("x = 1")
    assert len(titles([tmp_path / "0.py", tmp_path / "1.py", tmp_path / "2.py"])) == 3  # and the long document
    assert "only the first 2" in capsys.readouterr().err


def test_an_installed_package_has_documents_too() -> None:
    package = Path(demo_files.__file__).parent.parent
    documents = demo_files._installed_documents(package)
    assert len(documents) >= 3
    assert all(read_document(text).sentences for _, text in documents)
    for path in package.rglob("*.py"):
        ast.parse(path.read_bytes())


def test_figures() -> None:
    tracks = [Track(job) for job in jobs_for([])[:4]]
    for number, (track, state) in enumerate(zip(tracks, ("SUCCEEDED", "FAILED", "", ""), strict=True)):
        track.accepted, track.state, track.took_ms, track.transfers = number < 3, state, 10.0 * (number + 1), number % 2
    assert figures_of(tracks) == {
        "tasks": 4,
        "succeeded": 1,
        "failed": 2,  # the last one was refused
        "lost": 1,
        "transfers": 2,
        "p50_ms": 10.0,
        "p95_ms": 20.0,
    }
    assert figures_of([])["p95_ms"] == 0.0
