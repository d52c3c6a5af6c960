"""The reviewer: exact findings by line on samples, none on clean code, no crash on anything."""

from __future__ import annotations

import json
import re
import sysconfig
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reach.demo_agents
from reach.demo_agents.payload import BadRequestError
from reach.demo_agents.review_base import RULES
from reach.demo_agents.reviewer import (
    NotPythonError,
    Summary,
    read_module,
    read_request,
    review,
    summarize,
    to_json,
)

SAMPLES = Path(__file__).parent / "samples"
_EXPECTED = re.compile(r"# expect: ([\w\- ]+)$")


def found(source: str) -> list[tuple[int, str]]:
    return [(finding.line, finding.rule) for finding in review(read_module(source))]


def rules(source: str) -> list[str]:
    return [rule for _, rule in found(source)]


def test_sample_has_exactly_the_findings_it_is_marked_with() -> None:
    source = (SAMPLES / "flawed.py.txt").read_text("utf-8")
    expected = [
        (number, rule)
        for number, line in enumerate(source.splitlines(), 1)
        if (match := _EXPECTED.search(line))
        for rule in match[1].split()
    ]
    assert sorted(found(source)) == sorted(expected)
    assert {rule for _, rule in expected} == set(RULES) - {"too-long-function", "too-complex"}


def test_clean_sample_has_none() -> None:
    assert found((SAMPLES / "clean.py.txt").read_text("utf-8")) == []


def test_our_own_agents_have_none() -> None:
    paths = sorted(Path(reach.demo_agents.__file__).parent.glob("*.py"))
    assert len(paths) > 10
    for path in paths:
        findings = [f for f in review(read_module(path.read_text("utf-8"))) if f.rule != "too-complex"]
        assert not findings, f"{path.name}: {findings[0]}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # Exceptions
        ("try:\n    f()\nexcept:\n    g()\n", ["bare-except"]),
        ("try:\n    f()\nexcept:\n    pass\n", ["bare-except", "swallowed-exception"]),
        ("try:\n    f()\nexcept:\n    g()\n    raise\n", []),
        ("try:\n    f()\nexcept (KeyError, OSError):\n    pass\n", []),
        ("for x in y:\n    try:\n        f()\n    except Exception:\n        continue\n", ["swallowed-exception"]),
        # Defaults
        ("def f(a, *, b={}): return a, b\n", ["mutable-default"]),
        ("import collections\nf = lambda a=collections.deque(): a\n", ["mutable-default"]),
        ("def f(a=(), b=None, c=frozenset()): return a, b, c\n", []),
        # None
        ("x = 1\nif None != x: pass\n", ["none-comparison"]),
        ("x = 1\nif x is None or x == 0: pass\n", []),
        # Imports
        ("import a.b\nimport a.c as d\nprint(a)\n", ["unused-import"]),
        ("from __future__ import annotations\nfrom x import *\n", []),
        ("from x import y as y\nimport z as z\n", []),
        ("from x import y\n__all__ = ['y']\n", []),
        ("from x import y, z\n__all__ = []\n__all__ += ['y']\n__all__.extend(['z'])\n", []),
        ("try:\n    import x\nexcept ImportError:\n    x = None\n", []),
        ("from x import T\ndef f(a: 'list[T]') -> None: ...\n", []),
        ("from typing import cast\nfrom x import T\ny = cast('T', 1)\n", []),
        ("import x\ndef f():\n    import x\n    return x\n", ["unused-import"]),
        ("import x\nclass A:\n    x = x\n", []),
        ("import x  # noqa\nimport y  # noqa: F401\nimport z  # noqa: E501\n", ["unused-import"]),
        ("import x  # noqa: unused-import\n", []),
        # Variables
        ("def f():\n    x = 1\n", ["unused-variable"]),
        ("def f():\n    x: int = 1\n", ["unused-variable"]),
        ("def f():\n    _x = 1\n", []),
        ("def f():\n    a, b = 1, 2\n    return a\n", []),
        ("def f():\n    x = 1\n    return locals()\n", []),
        ("def f():\n    x = 1\n    def g(): return x\n    return g\n", []),
        ("def f():\n    global x\n    x = 1\n", []),
        ("def f():\n    x = 0\n    def g():\n        nonlocal x\n        x = 1\n    return g\n", []),
        ("def f():\n    x = 1\n    del x\n", []),
        ("def f():\n    x = 0\n    x += 1\n", []),
        ("def f(x):\n    return [x for x in x]\n", []),
        ("def f():\n    x = [1]\n    return [x for x in x]\n", []),
        ("def f():\n    try:\n        g()\n    except OSError as error:\n        return 1\n", ["unused-variable"]),
        ("def f():\n    with g() as x:\n        pass\n", ["unused-variable"]),
        ("def f():\n    if (x := g()): pass\n", []),
        ("class A:\n    x = 1\n", []),
        # Builtins
        ("def f(id): return id\n", ["shadowed-builtin"]),
        ("list = 1\n", ["shadowed-builtin"]),
        ("class A:\n    id = 1\n    def list(self): return self\n", []),
        # f-strings
        ("x = f'a'\n", ["f-string-without-placeholder"]),
        ("y = 1\nx = f'{y:>10}' f'b'\n", []),
        # assert
        ("assert (1, 'text')\n", ["assert-on-tuple"]),
        ("assert 1, 'text'\nassert ()\n", []),
        # await
        ("async def f(): pass\nasync def g():\n    f()\n", ["missing-await"]),
        ("async def f(): pass\nasync def g():\n    await f()\n    x = f()\n    return x\n", []),
        ("async def f(): yield\nasync def g():\n    f()\n", []),
        ("async def f(): pass\ndef f(): pass\nf()\n", []),
        ("@task\nasync def f(): pass\nf()\n", []),
        ("async def f(): pass\ndef g(f):\n    f()\n", []),
        ("import asyncio\nasync def f():\n    asyncio.sleep(1)\n", ["missing-await"]),
        ("class A:\n    async def f(self): pass\n    async def g(self):\n        self.f()\n", ["missing-await"]),
        ("class A:\n    def f(self): pass\n    async def g(self):\n        self.f()\n", []),
        # open
        ("x = open('a').read()\n", ["open-without-with"]),
        ("import json\nx = json.load(open('a'))\n", ["open-without-with"]),
        ("for line in open('a'): print(line)\n", ["open-without-with"]),
        ("def f():\n    h = open('a')\n    return h.read()\n", ["open-without-with"]),
        ("import sqlite3\ndef f():\n    c = sqlite3.connect('a')\n    c.execute('x')\n", ["open-without-with"]),
        ("with open('a') as h: h.read()\n", []),
        ("def f():\n    h = open('a')\n    with h: return h.read()\n", []),
        ("def f():\n    h = open('a')\n    h.close()\n", []),
        ("def f(): return open('a')\n", []),
        ("def f(stack): return stack.enter_context(open('a')).read()\n", []),
        ("class A:\n    def __init__(self): self.h = open('a')\n", []),
        ("def f():\n    h = open('a')\n    g(h)\n", []),
        ("from webbrowser import open\nopen('a')\n", ["shadowed-builtin"]),
        ("open('a', 'w').close()\n", []),
        # eval, exec, shells
        ("eval(input())\nexec('x')\n", ["eval-or-exec", "eval-or-exec"]),
        ("def f(eval): eval('x')\n", ["shadowed-builtin"]),
        ("model.eval()\n", []),
        ("import os\nos.system('ls')\n", ["shell-command"]),
        (
            "import subprocess\nsubprocess.run('ls', shell=True)\nsubprocess.run(['ls'], shell=False)\n",
            ["shell-command"],
        ),
        # SQL
        ("db.execute(f'SELECT a FROM t WHERE b = {x}')\n", ["sql-by-formatting"]),
        ("q = 'delete from t where a = ' + x + ' and b'\n", ["sql-by-formatting"]),
        ("q = 'UPDATE t SET a = %s' % x\n", ["sql-by-formatting"]),
        ("q = 'insert into t values ({})'.format(x)\n", ["sql-by-formatting"]),
        ("q = f'SELECT a FROM {TABLE} WHERE b = ?'\ndb.execute(q, [x])\n", []),
        ("print(f'Select {x} please')\nprint('update: %s' % x)\n", []),
        # Flow
        ("def f():\n    return 1\n    g()\n", ["unreachable-code"]),
        ("while True:\n    f()\ng()\n", ["unreachable-code"]),
        ("while True:\n    if f(): break\ng()\n", []),
        ("while True:\n    for x in y: break\ng()\n", ["unreachable-code"]),
        ("def f(x):\n    if x: return 1\n    else: raise OSError\n    g()\n", ["unreachable-code"]),
        ("def f(x):\n    if x: return 1\n    g()\n", []),
        ("def f():\n    try: return g()\n    except OSError: pass\n    h()\n", []),
        ("def f():\n    try: return g()\n    finally: h()\n    i()\n", ["unreachable-code"]),
        ("def f():\n    return\n    yield\n", []),
        ("import sys\nsys.exit()\nprint()\n", ["unreachable-code"]),
        ("def f(x):\n    with x: raise OSError\n    g()\n", []),
    ],
)
def test_single_rules(source: str, expected: list[str]) -> None:
    assert rules(source) == expected


def test_length_is_counted_without_the_docstring() -> None:
    body = "".join(f"    g({n})\n" for n in range(69))
    assert rules(f'def f():\n    """One.\n\n    Three.\n    """\n{body}') == []
    assert found(f"@d\ndef f():\n{body}    g()\n") == [(2, "too-long-function")]


def test_complexity_is_mccabes() -> None:
    source = """\
def f(a, b):
    if a and b or a:
        return [x for x in a if x if b]
    elif b:
        return a if b else b
    for x in a:
        while x:
            def inner():
                if a: pass
            x = inner()
    try:
        g()
    except OSError:
        h()
    match a:
        case 1: pass
        case _: pass
"""
    # 1 + if, and, or, comprehension with two ifs (3), elif, conditional, for, while, except, case 1
    module = read_module(source)
    findings = list(review(module))
    assert [f.message for f in findings] == ["f has a cyclomatic complexity of 13; 10 is McCabe's limit."]
    assert summarize(module, findings).most_complex == ("f", 1, 13)


def test_findings_come_in_the_order_of_the_source() -> None:
    source = "import b\ndef f(\n    a=[],\n    c={},\n):\n    return a\n    x = 1\nimport c\n"
    assert [line for line, _ in found(source)] == [1, 3, 4, 7, 7, 8]


def test_columns_count_characters() -> None:
    finding = next(review(read_module("é = 'äöü'; x = f'a'\n")))
    assert (finding.line, finding.column, finding.rule) == (1, 16, "f-string-without-placeholder")


def test_lines_are_those_of_python() -> None:
    assert found("x = 'a\x0cb\u2028c'\r\nimport y  # noqa\rimport z\n") == [(3, "unused-import")]


def test_every_finding_reads_as_a_sentence_with_advice() -> None:
    finding = next(review(read_module("import os\n")))
    assert str(finding) == "line 1, column 8: unused-import: os is imported but never used. Remove it."


def test_summaries() -> None:
    assert str(Summary(3, 0, None, {})) == "No findings in 3 lines."
    assert str(Summary(1, 0, None, {"a": 2})) == "2 findings in 1 line: 2 a."
    assert str(Summary(9, 1, ("f", 2, 4), {"a": 1})) == (
        "1 finding in 9 lines: 1 a; 1 function, the most complex is f in line 2 (4)."
    )
    module = read_module("import a\nimport b\ndef f(x=[]): pass\n")
    text = str(summarize(module, list(review(module))))
    assert text == (
        "3 findings in 3 lines: 2 unused-import, 1 mutable-default; 1 function, the most complex is f in line 3 (1)."
    )


def test_json() -> None:
    module = read_module("import a\n")
    findings = list(review(module))
    document = json.loads(json.dumps(to_json(findings, summarize(module, findings))))
    assert document["findings"] == [
        {
            "line": 1,
            "column": 8,
            "rule": "unused-import",
            "message": "a is imported but never used.",
            "advice": "Remove it.",
        }
    ]
    assert document["summary"]["by_rule"] == {"unused-import": 1}
    assert document["summary"]["lines"] == 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = (\n", "line 1, column 5: '\\(' was never closed"),
        ("def f():\nreturn 1\n", "line 2, column 1: expected an indented block"),
        ("a\x00b", "null bytes"),
        ("-" * 100_000 + "1", "nested too deeply|too many nested|too complex"),
        ("(" * 1000 + ")" * 1000, "too many nested parentheses"),
        ("\ud800", "surrogates|unicode|codec"),
    ],
)
def test_what_is_no_python_is_refused_with_its_place(source: str, message: str) -> None:
    with pytest.raises(NotPythonError, match=message):
        read_module(source)


@pytest.mark.parametrize(
    "source",
    [
        "if x:\n    pass\n" + "elif y:\n    pass\n" * 300,
        "x = " + " + ".join(["a"] * 400) + "\n",
        "x = " + "[" * 90 + "]" * 90 + "\n",
        "".join(" " * n + "if x:\n" for n in range(90)) + " " * 90 + "pass\n",
        "import x; " * 2000 + "\n",
        "'\\d'\n",
    ],
)
def test_deep_and_odd_source_is_reviewed(source: str) -> None:
    list(review(read_module(source)))


def test_handlers_run_in_threads() -> None:
    results: list[list[str]] = []
    threads = [threading.Thread(target=lambda: results.append(rules("'\\d'\nimport a\n" * 200))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [["unused-import"] * 200] * 4


def test_standard_library_is_reviewed_without_a_crash() -> None:
    folder = Path(sysconfig.get_path("stdlib"))
    names = "argparse ast dataclasses enum functools inspect json/decoder logging/__init__ tarfile typing subprocess"
    for name in names.split():
        module = read_module((folder / f"{name}.py").read_text("utf-8"))
        findings = list(review(module))
        lines = [finding.line for finding in findings]
        assert lines == sorted(lines)
        assert all(1 <= finding.line <= len(module.lines) and finding.column >= 1 for finding in findings)
        assert all(finding.rule in RULES for finding in findings)
        assert str(summarize(module, findings))


def test_requests() -> None:
    assert read_request(b"x = 1", "text/x-python") == ("x = 1", False)
    assert read_request(b'{"source": "x", "format": "json"}', "application/json") == ("x", True)
    with pytest.raises(BadRequestError, match="text, json"):
        read_request(b'{"source": "x", "format": "xml"}', "application/json")


PIECES = (
    "import a;from b import c as d;def f(x=[]):;async def g():; return 1; x = 1;  y = f'{x}';class A:; try:;  except:;"
    "  pass;x = open('a');eval(x);await g();while True:;lambda: x;[x for x in y];global x;match x:;"
    "  case {'a': b, **c}:;@d;with open(x) as y:;assert (1, 2);del x;x == None;else:;finally:; yield;"
).split(";")


@settings(deadline=None)
@given(st.one_of(st.text(max_size=200), st.lists(st.sampled_from(PIECES), max_size=8).map("\n".join)))
def test_any_text_is_reviewed_or_refused(source: str) -> None:
    try:
        module = read_module(source)
    except NotPythonError:
        return
    findings = list(review(module))
    assert [f.line for f in findings] == sorted(f.line for f in findings)
    assert to_json(findings, summarize(module, findings))
