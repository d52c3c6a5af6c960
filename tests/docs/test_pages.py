"""What every page promises: links lead somewhere, commands and options exist, configurations can be used."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from agentreach.v1 import cluster_pb2
from reach.cli.app import reach
from reach.config import load
from reach.telemetry.metrics import ALERTS
from reach.wire.webhooks import headers_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
STATES = cluster_pb2.NodeState.DESCRIPTOR.values_by_name
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))
PAGES = [
    str(path.relative_to(ROOT))
    for path in (
        *ROOT.glob("*.md"),
        ROOT / "examples" / "README.md",
        ROOT / "sdks" / "node" / "README.md",
        *sorted(DOCS.rglob("*.md")),
    )
]
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def text_of(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def anchors_of(file: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", _CODE.sub("", file.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", _CODE.sub("", text_of(page))):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), target
        assert not anchor or anchor in anchors_of(file), target


def commands_of(text: str) -> list[str]:
    """All that a page tells people to type that begins with `reach`: in blocks, indented lines and code spans."""
    lines = [line for block in _CODE.findall(text) for line in block.splitlines()[1:-1]]
    lines += re.findall(r"^    (\S.*)$", _CODE.sub("", text), re.MULTILINE)
    typed = [found[1] for line in lines if (found := re.search(r"(?:^|[|&(] *)\s*(reach [a-z].*)", line))]
    spans = re.findall(r"`(reach [^`]+)`", _CODE.sub("", text).replace("\n", " "))
    return [re.split(r' \| |  #|\)"', line)[0] for line in (*typed, *spans)]


def wrong_in(typed: str) -> str:
    """What of a command line there is not; empty if all of it is there."""
    command: click.Command = reach
    words = shlex.split(typed.replace("\\", ""), comments=True)[1:]
    while words and isinstance(command, click.Group) and not words[0].startswith("-"):
        inner = command.commands.get(words[0])
        if inner is None:
            return words[0]
        command = inner
        words = words[1:]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    known |= {name for parameter in reach.params for name in parameter.opts} | {"--help"}
    options = (word.partition("=")[0] for word in words if re.match(r"--\w", word))
    return next((option for option in options if option not in known), "")


@pytest.mark.parametrize("page", [page for page in PAGES if "decisions" not in page])
def test_commands_and_their_options_exist(page: str) -> None:
    assert {typed: wrong for typed in commands_of(text_of(page)) if (wrong := wrong_in(typed))} == {}


def test_the_search_for_commands_finds_them_and_what_is_wrong_in_them() -> None:
    page = "Say `reach agents list`.\n\n    reach keys list --json\n\n```sh\necho x | reach dispatch --to 'a b'\n```\n"
    assert commands_of(page) == ["reach dispatch --to 'a b'", "reach keys list --json", "reach agents list"]
    assert [wrong_in(typed) for typed in commands_of(page)] == ["--to", "", ""]
    assert wrong_in("reach agents lst") == "lst"


@pytest.mark.parametrize("page", ["docs/concepts.md", "docs/operations.md", "docs/configuration.md"])
def test_configurations_of_the_pages_can_be_used(page: str, tmp_path: Path) -> None:
    found = re.findall(r"^```yaml\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)
    assert found
    for name in ("skills", "routes"):
        (tmp_path / f"{name}.yaml").write_text(f"{name}: {'{}' if name == 'skills' else '[]'}\n")
    for name in ("webhook.secret", "kubernetes-jwks.json", "server.crt", "server.key", "clients-ca.crt"):
        (tmp_path / name).write_text("hush")
    for number, body in enumerate(found):
        file = tmp_path / f"{number}.yaml"
        file.write_text(body.replace("/etc/agentreach/", f"{tmp_path}/"))
        assert load(file, {}) != load(None, {})


def test_what_concepts_says_of_signatures_finds_ours() -> None:
    (body,) = re.findall(r"^```python\n(.*?)^```$", text_of("docs/concepts.md"), re.MULTILINE | re.DOTALL)
    page: dict[str, Any] = {}
    exec(body, page)
    headers = headers_of("d-1", b"hush", 1_700_000_000_000, b"{}")
    assert page["is_ours"](headers, b"{}", b"hush")
    assert not page["is_ours"](headers, b"{ }", b"hush")


def test_every_decision_has_a_number_of_its_own_and_is_in_the_list() -> None:
    titles = {path.name: path.read_text("utf-8").splitlines()[0] for path in DECISIONS}
    numbers = [name[:4] for name in titles]
    assert numbers == [f"{number:04}" for number in range(1, len(numbers) + 1)]
    listed = re.findall(r"^\* \[(\d+)\]\(([^)]+)\) (.+)$", text_of("docs/decisions/README.md"), re.MULTILINE)
    assert [(name, f"# {number} {title}") for number, name, title in listed] == list(titles.items())


def test_operations_names_every_alert() -> None:
    (row,) = re.findall(
        r"^\| `agentreach_alert_total\{kind\}` \| (.*) \|$", text_of("docs/operations.md"), re.MULTILINE
    )
    assert re.findall(r"`(\w+)`", row) == list(ALERTS)


def test_operations_says_what_each_state_of_a_node_and_each_alert_of_a_cluster_means() -> None:
    text = text_of("docs/operations.md")
    rows = set(re.findall(r"^\| ([a-z ]+)(?:,[^|]*)? \|", text, re.MULTILINE))
    names = {name.removeprefix("NODE_STATE_").replace("_", " ").lower() for name in STATES}
    assert names - {"unspecified"} <= rows
    seen = re.findall(r"^\| (alert .*?|another.*?) \|", text, re.MULTILINE)
    for kind in ALERTS[ALERTS.index("in_doubt") :]:
        assert any(f"`{kind}`" in one for one in seen), kind
