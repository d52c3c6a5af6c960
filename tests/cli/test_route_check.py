"""`reach route check`: files of rules, without a server."""

from pathlib import Path

import pytest

from tests.cli.conftest import Command


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    skills, routes = tmp_path / "skills.yaml", tmp_path / "routes.yaml"
    skills.write_text("skills: {refunds: {aliases: [refund]}}\n")
    routes.write_text("routes:\n- intent_prefix: shop\n  require_capability: refund\n")
    return str(skills), str(routes)


def test_good_files_say_what_they_hold(reach: Command, files: tuple[str, str]) -> None:
    ran = reach("route", "check", *files)
    assert (ran.code, ran.out) == (0, f"{files[0]}: 1 skills\n{files[1]}: 1 routes\n")


def test_every_problem_has_its_line(reach: Command, files: tuple[str, str]) -> None:
    Path(files[0]).write_text("skills:\n  a: {}\n  A: {}\n")
    Path(files[1]).write_text("routes:\n- intent_prefix: shop\n  polic: x\n")
    ran = reach("route", "check", *files)
    assert ran.code == 2
    assert f"{files[0]}:3: skill 'A' reads like 'a' in line 2" in ran.err
    assert f"{files[1]}:3: routes[0].polic is unknown; did you mean policy?" in ran.err


def test_routes_are_compared_with_the_vocabulary(reach: Command, files: tuple[str, str]) -> None:
    Path(files[1]).write_text("routes:\n- intent_prefix: shop\n  require_capability: dance\n")
    unknown = f"{files[1]}:2: route 'shop': skill 'dance' is not in the vocabulary"
    ran = reach("route", "check", *files)
    assert (ran.code, unknown in ran.out) == (0, True)
    ran = reach("route", "check", "--strict", *reversed(files))
    assert (ran.code, unknown in ran.err) == (2, True)


def test_a_file_that_is_neither_is_told_so(reach: Command, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("server: {}\n")
    assert "the file has one key, routes" in reach("route", "check", str(tmp_path / "x")).err
    assert "cannot be read" in reach("route", "check", str(tmp_path / "none")).err


def test_routes_may_name_own_policies(reach: Command, files: tuple[str, str], tmp_path: Path) -> None:
    Path(files[1]).write_text("routes:\n- intent_prefix: shop\n  require_capability: refund\n  policy: careful\n")
    (tmp_path / "reach.yaml").write_text("router: {policies: {careful: {success_rate: 1}}}\n")
    assert f"{files[1]}:4: there is no policy 'careful'" in reach("route", "check", *files).err
    assert reach("route", "check", *files, "--config", str(tmp_path / "reach.yaml")).code == 0
    (tmp_path / "reach.yaml").write_text("router: {policies: {careful: {succes_rate: 1}}}\n")
    wrong = reach("route", "check", *files, "--config", str(tmp_path / "reach.yaml"))
    assert (wrong.code, "there is no signal 'succes_rate'" in wrong.err) == (2, True)
