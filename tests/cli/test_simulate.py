"""`reach route simulate`: no server is needed."""

from __future__ import annotations

from pathlib import Path

from reach.cli.exits import Exit
from tests.cli.conftest import Command


def test_the_stories_are_listed(reach: Command) -> None:
    ran = reach("route", "simulate")
    assert ran.code == Exit.OK
    assert "slow-node" in ran.out
    assert {row["name"] for row in reach("route", "simulate", "--json").data["stories"]} >= {"leak", "black-hole"}


def test_a_story_as_tables_and_for_programs(reach: Command) -> None:
    ran = reach("route", "simulate", "--trace", "slow-node", "--seed", "3")
    facts, table = ran.out.split("\n\n")
    assert facts.splitlines()[:2] == ["trace        slow-node, seed 3", "policy       balanced"]
    assert [line.split()[0] for line in table.splitlines()] == ["INSTANCE", "fast-1", "fast-2", "fast-3", "slow"]
    (report,) = reach("route", "simulate", "--trace", "slow-node", "--seed", "3", "--json").data["reports"]
    assert (report["policy"], report["error_rate"], len(report["instances"])) == ("balanced", 0.0, 4)
    assert report["p50_ms"] <= report["p95_ms"] <= report["p99_ms"]


def test_what_is_wrong_is_a_line_and_a_code(reach: Command, tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("name: x\ninstances: [{name: a, slots: none}]\ntasks: [{rate: 1}]\n")
    ran = reach("route", "simulate", "--trace", str(file))
    assert (ran.code, ran.out) == (Exit.WRONG_REQUEST, "")
    assert "$.instances[0].slots" in ran.err
    for wrong in (["--trace", "none"], ["--trace", "leak", "--policy", "best"], ["--trace", "leak", "--seed", "-1"]):
        assert reach("route", "simulate", *wrong).code == Exit.WRONG_REQUEST


def test_own_policies_can_be_played(reach: Command, tmp_path: Path) -> None:
    file = tmp_path / "reach.yaml"
    file.write_text("router: {policies: {careful: {success_rate: 3, capacity: 1}}}\n")
    asked = ("route", "simulate", "--trace", "slow-node", "--policy", "careful", "--json")
    assert reach(*asked).code == Exit.WRONG_REQUEST
    (report,) = reach(*asked, "--config", str(file)).data["reports"]
    assert report["policy"] == "careful"
