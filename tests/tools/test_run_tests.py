"""How the tests are shared out among processes."""

from __future__ import annotations

from pathlib import Path

from tools.run_tests import FEW, LONG, OTHERWISE, ROOT, Ran, parts, report

FILES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))


def test_each_file_is_in_one_part() -> None:
    made = parts(FILES)
    assert sorted(name for part in made for name in part) == FILES
    assert all(len(part) <= OTHERWISE for part in made)


def test_what_takes_longest_begins_first_and_alone() -> None:
    assert parts(FILES)[: len(LONG)] == [[name] for name in LONG]


def test_it_names_what_there_is() -> None:
    assert [name for name in LONG if name not in FILES] == []
    assert [folder for folder in FEW if not (Path(ROOT) / folder).is_dir()] == []


def test_a_part_that_failed_is_told_in_full_and_one_that_did_not_by_what_it_skipped(capsys) -> None:
    counts: dict[str, int] = {}
    report(
        Ran(["tests/a/test_a.py"], 0, "..s\nSKIPPED [1] no etcd here\n2 passed, 1 skipped in 1.00s\n"), "1/2", counts
    )
    assert capsys.readouterr().out == (
        "[1/2] tests/a/test_a.py: 2 passed, 1 skipped in 1.00s\n  SKIPPED [1] no etcd here\n"
    )
    report(Ran(["tests/a/test_b.py", "tests/a/test_c.py"], 1, "F\nwhy\n1 failed, 3 passed in 1.00s"), "2/2", counts)
    told = capsys.readouterr().out
    assert told.startswith("[2/2] tests/a/ test_b.py … test_c.py: 1 failed, 3 passed in 1.00s\n")
    assert "\nwhy\n" in told
    assert counts == {"passed": 5, "skipped": 1, "failed": 1}
