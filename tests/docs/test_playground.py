"""docs/routing-playground.md: its trace is one, and it names every story."""

import re
from pathlib import Path

from reach.playground.trace import read, stories
from reach.playground.world import simulate

PAGE = (Path(__file__).parents[2] / "docs" / "routing-playground.md").read_text()


def test_the_trace_of_the_page_can_be_played():
    found = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    report = simulate(read(found[1].encode(), "page"), "balanced")
    assert report.tasks > 1_500
    assert report.unfinished == 0


def test_the_page_names_every_story():
    assert re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE) == [
        "slow-node", "cold-restart", "leak", "black-hole", "hot-capability", "worse-canary",
    ]  # fmt: skip
    assert sorted(re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE)) == stories()
