"""The files of vocabulary and routes: taken whole or not at all, every problem with its line (REG-5, RTE-6)."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from reach.config.loading import ConfigError
from reach.config.rules import check_capabilities, kind_of, load_routes, load_vocabulary
from reach.config.watching import Rules
from reach.core.policies import POLICIES
from reach.core.retry import POLICIES as RETRIES


def problems_of(load, path: Path, text: str | bytes) -> list[str]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as refused:
        load(path)
    return [problem.removeprefix(f"{path}:") for problem in refused.value.problems]


ALL_KEYS = """\
routes:
  - intent_prefix: shop
    require_capability: selling
    tags: [vip, eu]
    policy: balanced
    session_required: true
    session_ttl: 1800
    timeout_ms: 2500
    retry: quick
    fallback_intent: help
  - intent_prefix: help
    require_capability: support
    retry: [100, 200]
    fallback_capability: chat
  - {intent_prefix: both, parallel: [shop.buy, help]}
"""


def test_RTE_6_all_keys_of_a_route(tmp_path):
    path = tmp_path / "routes.yaml"
    path.write_text(ALL_KEYS)
    shop, helping, both = load_routes(path)
    assert shop[:-1] == (
        "shop", "selling", ("vip", "eu"), "balanced", True, 1_800_000, 2_500, RETRIES["quick"], "help", "", (),
    )  # fmt: skip
    assert helping.retry is not None
    assert (helping.retry.delays_ms, helping.fallback_capability, helping.session_ttl_ms) == ((100, 200), "chat", None)
    assert (both.parallel, both.line) == (("shop.buy", "help"), 15)


CIRCLE = """\
routes:
- {intent_prefix: a, tags: [x], fallback_intent: b}
- {intent_prefix: b, tags: [x], fallback_intent: a}
"""
BAD_ROUTES = [
    ("routes: 3", ["1: routes must be a list"]),
    ("route: []", ["1: route is unknown; the file has one key, routes"]),
    ("- a", ["1: the file must hold keys and values"]),
    ("routes: [\n  {intent_prefix: a", ["2: is not YAML: expected ',' or '}', but got '<stream end>'"]),
    ("routes:\n  - 3", ["2: section routes[0] must hold keys and values", "2: routes[0] has no intent_prefix"]),
    ("routes:\n  - tags: [x]", ["2: routes[0] has no intent_prefix"]),
    ("routes:\n- intent_prefix: a\n  tags: [x]\n  polic: b", ["4: routes[0].polic is unknown; did you mean policy?"]),
    ("routes:\n- intent_prefix: a\n  tags: [x]\n  tags: [y]", ["4: routes[0].tags is there twice, first in line 3"]),
    ("routes:\n- intent_prefix: a\n  tags: [x]\n  policy: nope", ["4: there is no policy 'nope'; there is "]),
    ("routes:\n- intent_prefix: a\n  tags: [x]\n  retry: nope", ["4: there is no retry policy 'nope'; there is "]),
    ("routes:\n- intent_prefix: a\n  tags: [x]\n  retry: [0]", ["4: routes[0].retry: expected int >= 1"]),
    ("routes:\n- intent_prefix: a\n  tags: [x]\n  timeout_ms: -1", ["4: routes[0].timeout_ms: expected int >= 1"]),
    ("routes:\n- intent_prefix: a\n  tags: [x]\n  timeout_ms: .nan", ["4: routes[0].timeout_ms: expected int"]),
    ("routes:\n- intent_prefix: a\n  tags: [x]\n  session_ttl: 9", ["4: session_ttl needs session_required"]),
    ("routes:\n- intent_prefix: a\n  session_required: 'no'\n  tags: [x]",
     ["3: routes[0].session_required: expected bool"]),
    ("routes:\n- intent_prefix: a", ["2: route 'a' names nobody: give require_capability, tags or parallel"]),
    ("routes:\n- intent_prefix: a..b\n  tags: [x]", ["2: intent_prefix 'a..b' must be words joined by dots"]),
    ("routes:\n- intent_prefix: a\n  tags: [x]\n- tags: [y]\n  intent_prefix: a",
     ["5: intent_prefix 'a' is there twice, first in line 2"]),
    ("routes:\n- intent_prefix: a\n  tags: [x]\n  fallback_intent: b", ["4: fallback_intent 'b' has no route"]),
    ("routes:\n- intent_prefix: a\n  tags: [x]\n  fallback_intent: a.b",
     ["4: fallbacks of 'a' go round: a -> a"]),
    (CIRCLE,
     ["2: fallbacks of 'a' go round: a -> b -> a", "3: fallbacks of 'b' go round: b -> a -> b"]),
    ("routes:\n- {intent_prefix: a, tags: [x]}\n- intent_prefix: b\n  parallel: [c, b.d]",
     ["4: parallel 'b.d' is parallel itself", "4: parallel 'c' has no route"]),
    ("routes:\n- intent_prefix: a\n  parallel: [a]\n  require_capability: x",
     ["3: parallel 'a' is parallel itself", "3: parallel and require_capability exclude each other"]),
    ("routes:\n- intent_prefix: a\n  tags: [" + "x, " * 65 + "]",
     ["3: routes[0].tags: expected array of length <= 64"]),
    (b"routes:\n- intent_prefix: \xff", ["2: is not YAML: "]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), BAD_ROUTES)
def test_RTE_6_a_bad_file_of_routes_is_told_of_with_lines(tmp_path, text, expected):
    found = problems_of(load_routes, tmp_path / "routes.yaml", text)
    if isinstance(text, bytes):  # PyYAML tells no line of bytes that are no text
        assert "is not YAML" in found[0]
        return
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.startswith(other)


BAD_VOCABULARY = [
    ("skills: []", ["1: section skills must hold keys and values"]),
    ("skills:\n  a: 3", ["2: section skills.a must hold keys and values"]),
    ("skills:\n  a: {alias: [b]}", ["2: skills.a.alias is unknown; did you mean aliases?"]),
    ("skills:\n  a:\n    aliases: b", ["3: skills.a.aliases: expected array, got str"]),
    ("skills:\n  a: {}\n  a: {}", ["3: skills.a is there twice, first in line 2"]),
    ("skills:\n  text sum: {}\n  Text_Sum: {}", ["3: skill 'Text_Sum' reads like 'text sum' in line 2"]),
    ("skills:\n  a: {aliases: [x]}\n  b:\n    aliases: [X]", ["4: alias 'X' of 'b' means 'a' already (line 2)"]),
    ("skills:\n  a: {aliases: [b]}\n  b: {}", ["2: alias 'b' of 'a' means 'b' already (line 3)"]),
    ("skills:\n  a:\n    aliases: [x]\n    exclude: [X]", ["4: 'X' is excluded from 'a', and is a name of it"]),
    ("skills:\n  a: {description: 3}", ["2: skills.a.description: expected str, got int"]),
    ("skills:\n  \"a\\nb\": {}", ["2: 'a\\nb' is no name of a skill"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), BAD_VOCABULARY)
def test_REG_5_a_bad_vocabulary_is_told_of_with_lines(tmp_path, text, expected):
    assert problems_of(load_vocabulary, tmp_path / "skills.yaml", text) == expected


def test_a_bomb_of_aliases_is_refused(tmp_path):
    text = "skills:\n  a:\n    aliases: &a0 [x]\n" + "".join(
        f"  b{at}: {{aliases: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]}}\n" for at in range(1, 9)
    )
    assert any("too large" in one for one in problems_of(load_vocabulary, tmp_path / "skills.yaml", text))


def test_empty_files_are_empty_rules(tmp_path):
    for text in ("", "# nothing\n", "skills:\n"):
        (tmp_path / "skills.yaml").write_text(text)
        assert not load_vocabulary(tmp_path / "skills.yaml").skills
    (tmp_path / "routes.yaml").write_text("routes:\n")
    assert not len(load_routes(tmp_path / "routes.yaml"))


def test_the_kind_of_a_file_is_what_it_begins_with(tmp_path):
    path = tmp_path / "x"
    for text, kind in (("routes: []", "routes"), ("skills: {}", "skills"), ("server: {}", ""), ("", ""), ("{", "")):
        path.write_text(text)
        assert kind_of(path) == kind
    assert kind_of(tmp_path / "none") == ""


def test_routes_are_compared_with_the_vocabulary(tmp_path):
    (tmp_path / "r").write_text("routes:\n- intent_prefix: a\n  require_capability: x\n  fallback_capability: Y\n")
    (tmp_path / "v").write_text("skills: {y: {}}\n")
    found = check_capabilities(tmp_path / "r", load_routes(tmp_path / "r"), load_vocabulary(tmp_path / "v"))
    assert found == [f"{tmp_path / 'r'}:2: route 'a': skill 'x' is not in the vocabulary"]


# -- hot reload -------------------------------------------------------------------------------------------------------


class Files:
    def __init__(self, folder: Path, strict: bool = False) -> None:
        self.skills, self.routes = folder / "skills.yaml", folder / "routes.yaml"
        self.skills.write_text("skills: {a: {}}\n")
        self.routes.write_text("routes: [{intent_prefix: i, require_capability: a}]\n")
        self.taken: list[tuple[list[str], list[str]]] = []
        self.rules = Rules(self.skills, self.routes, POLICIES, strict, self.apply)
        self.rules.load()

    async def apply(self, vocabulary, routes):
        self.taken.append((list(vocabulary.skills), [route.intent_prefix for route in routes]))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - it depends on files
                await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr("reach.config.watching.LOOK_SECONDS", 0.02)


async def test_REG_5_a_change_is_taken_and_a_bad_one_keeps_the_old_rules(tmp_path, caplog):
    files = Files(tmp_path)
    watching = asyncio.create_task(files.rules.watch())
    files.skills.write_text("skills: {a: {}, b: {}}\n")
    await files.until(lambda: len(files.taken) == 1)
    assert files.taken == [(["a", "b"], ["i"])]
    files.routes.write_text("routes: [{intent_prefix: i, require_capability: a}, {intent_prefix: j}]\n")
    await files.until(lambda: "names nobody" in caplog.text)
    problem = f"{files.routes}:1: route 'j' names nobody: give require_capability, tags or parallel"
    assert [record.getMessage() for record in caplog.records] == [f"the old rules stay: {problem}"]
    assert list(files.rules.vocabulary.skills) == ["a", "b"]
    assert len(files.rules.routes) == 1
    files.routes.unlink()
    await files.until(lambda: "cannot be read" in caplog.text)
    files.routes.write_text("routes: []\n")
    await files.until(lambda: len(files.taken) == 2)
    assert files.taken[-1] == (["a", "b"], [])
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_reload_can_be_asked_for(tmp_path):
    files = Files(tmp_path)
    stamp = files.routes.stat()
    text = files.routes.read_text()
    files.routes.write_text(text.replace("intent_prefix: i", "intent_prefix: k"))
    os.utime(files.routes, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # as if nothing had changed
    before = files.rules.vocabulary
    assert await files.rules.reload()
    assert files.taken == [(["a"], ["k"])]
    assert files.rules.vocabulary is before


async def test_REG_5_strict_routes_name_skills_of_the_vocabulary(tmp_path, caplog):
    files = Files(tmp_path, strict=True)
    files.skills.write_text("skills: {b: {}}\n")
    assert not await files.rules.reload()
    assert "skill 'a' is not in the vocabulary" in caplog.text
    caplog.clear()
    lenient = Files(tmp_path)
    lenient.skills.write_text("skills: {b: {}}\n")
    assert await lenient.rules.reload()
    assert "skill 'a' is not in the vocabulary" in caplog.text


def test_a_bad_file_at_the_start_is_an_error(tmp_path):
    (tmp_path / "routes.yaml").write_text("routes: 3")
    rules = Rules(tmp_path / "none.yaml", tmp_path / "routes.yaml", POLICIES, False, Files.apply)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as refused:
        rules.load()
    assert len(refused.value.problems) == 2
