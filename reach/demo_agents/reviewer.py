"""Reviews Python source without running it, and streams what it finds, one finding at a time, from top to bottom.

    python -m reach.demo_agents.reviewer [--addr HOST:PORT]

Request: the source, or JSON {"source": "…", "format": "json"}. Answer: a line for each finding (place, rule, what,
advice) and a last line that sums up; as JSON, {"findings": […], "summary": {…}}. Source that is not Python is a
business failure with the place of the error. `# noqa` silences a line, alone or with the rule (or the code that flake8
or ruff uses for it). The rules: `review_base.RULES`.
"""

from __future__ import annotations

import ast
import heapq
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from reach.demo_agents.payload import DEFAULT_CONCURRENCY, BadRequestError, argument_parser, read_fields
from reach.demo_agents.review_base import Finding, Module
from reach.demo_agents.review_flow import complexity
from reach.demo_agents.review_names import FUNCTIONS, parse, read_names
from reach.demo_agents.review_rules import CHECKS, check_names

if TYPE_CHECKING:
    from reach import Agent, Task

AGENT_ID = "code-reviewer"
FORMATS = ("text", "json")
PROGRESS_STEP = 0.1  # of the lines


class NotPythonError(ValueError):
    """The source cannot be parsed; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a review says at its end. `most_complex`: name, line and McCabe number of a function, None without one."""

    lines: int
    functions: int
    most_complex: tuple[str, int, int] | None
    by_rule: dict[str, int]

    def __str__(self) -> str:
        count = sum(self.by_rule.values())
        findings = f"{count or 'No'} finding{_s(count)} in {self.lines} line{_s(self.lines)}"
        rules = ", ".join(f"{number} {rule}" for rule, number in self.by_rule.items())
        text = f"{findings}: {rules}" if rules else findings
        if self.most_complex is not None:
            name, line, number = self.most_complex
            text += f"; {self.functions} function{_s(self.functions)}, the most complex is {name} "
            text += f"in line {line} ({number})"
        return text + "."


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def read_module(source: str) -> Module:
    """Parse source for a review. Raises `NotPythonError`."""
    try:
        tree = parse(source)
    except SyntaxError as error:
        place = f"line {error.lineno or 1}, column {error.offset or 1}"
        raise NotPythonError(f"not valid Python: {place}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        reason = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        raise NotPythonError(f"not valid Python: {reason}") from error
    return Module(tree, split_lines(source), read_names(tree))


def split_lines(source: str) -> list[str]:
    """The lines as Python counts them: `str.splitlines` would also split at form feeds and the like."""
    lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def review(module: Module) -> Iterator[Finding]:
    """All findings, in the order of the source."""
    count = itertools.count()
    # What a rule finds is never above the node it looks at, so that all above the next node can go out.
    waiting = [(finding.line, finding.column, next(count), finding) for finding in check_names(module)]
    heapq.heapify(waiting)
    for node in in_order(module.tree):
        here = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0) + 1)
        while waiting and waiting[0][:2] < here:
            yield from _heard(module, heapq.heappop(waiting)[3])
        for check in CHECKS:
            for finding in check(module, node):
                heapq.heappush(waiting, (finding.line, finding.column, next(count), finding))
    while waiting:
        yield from _heard(module, heapq.heappop(waiting)[3])


def in_order(tree: ast.Module) -> list[ast.AST]:
    """All nodes that have a place, by line and column; outer before inner where they begin together."""
    nodes = [node for node in ast.walk(tree) if hasattr(node, "lineno")]
    nodes.sort(key=lambda node: (getattr(node, "lineno", 0), getattr(node, "col_offset", 0)))
    return [tree, *nodes]


def _heard(module: Module, finding: Finding) -> Iterator[Finding]:
    """The finding unless its line silences it, with its column in characters: ast counts in bytes of UTF-8."""
    if module.is_silenced(finding):
        return
    line = module.lines[finding.line - 1] if finding.line <= len(module.lines) else ""
    before = line.encode("utf-8", "replace")[: finding.column - 1].decode("utf-8", "ignore")
    yield finding if line.isascii() else replace(finding, column=len(before) + 1)


def summarize(module: Module, findings: Sequence[Finding]) -> Summary:
    """Count: lines, functions, complexity, findings by rule (most frequent first)."""
    functions = [node for node in ast.walk(module.tree) if isinstance(node, FUNCTIONS)]
    ranked = max(((complexity(f), -f.lineno, f.name) for f in functions), default=None)
    most = None if ranked is None else (ranked[2], -ranked[1], ranked[0])
    return Summary(
        len(module.lines), len(functions), most, dict(Counter(finding.rule for finding in findings).most_common())
    )


def to_json(findings: Sequence[Finding], summary: Summary) -> dict[str, Any]:
    """The whole review for programs."""
    return {
        "findings": [finding_to_json(finding) for finding in findings],
        "summary": {
            "text": str(summary),
            "lines": summary.lines,
            "functions": summary.functions,
            "highest_complexity": summary.most_complex[2] if summary.most_complex else 0,
            "by_rule": summary.by_rule,
        },
    }


def finding_to_json(finding: Finding) -> dict[str, Any]:
    """One finding for programs."""
    return {
        "line": finding.line,
        "column": finding.column,
        "rule": finding.rule,
        "message": finding.message,
        "advice": finding.advice,
    }


def read_request(payload: bytes, media_type: str) -> tuple[str, bool]:
    """The source, and whether the answer shall be JSON. Raises `BadRequestError`."""
    fields = read_fields(payload, media_type, "source", {"format": str})
    wanted = fields.get("format", "text")
    if wanted not in FORMATS:
        raise BadRequestError(f"'format' must be one of {', '.join(FORMATS)}")
    return fields["source"], wanted == "json"


def build_agent(
    addr: str | None = None,
    *,
    agent_id: str = AGENT_ID,
    instance_id: str | None = None,
    max_concurrency: int = DEFAULT_CONCURRENCY,
) -> Agent:
    """The agent, not yet running."""
    from reach import Agent, AgentError, Answer, InvalidRequest, Progress

    agent = Agent(
        agent_id,
        agent_type="reviewer",
        capabilities=["code_review"],
        tags=["python"],
        addr=addr,
        instance_id=instance_id,
        max_concurrency=max_concurrency,
    )

    @agent.route()
    @agent.route("task.process")
    def review_source(task: Task) -> Iterator[str | Progress | Answer]:
        try:
            source, as_json = read_request(task.payload, task.media_type)
            module = read_module(source)
        except BadRequestError as error:
            raise InvalidRequest(str(error)) from error
        except NotPythonError as error:
            raise AgentError(str(error)) from error
        findings: list[Finding] = []
        told = 0.0
        for finding in review(module):
            findings.append(finding)
            yield (json.dumps(finding_to_json(finding)) if as_json else str(finding)) + "\n"
            done = finding.line / max(1, len(module.lines))
            if done - told >= PROGRESS_STEP:
                told = done
                yield Progress(min(done, 1.0), f"line {finding.line} of {len(module.lines)}")
        summary = summarize(module, findings)
        if as_json:
            # The deltas were JSON lines; the result is one document.
            yield Answer(to_json(findings, summary))
        else:
            yield f"{summary}\n"

    return agent


def main(argv: Sequence[str] | None = None) -> None:
    """Run the agent until SIGTERM or SIGINT."""
    options = argument_parser(__doc__, AGENT_ID).parse_args(argv)
    build_agent(
        options.addr,
        agent_id=options.agent_id,
        instance_id=options.instance_id,
        max_concurrency=options.max_concurrency,
    ).run()


if __name__ == "__main__":
    main()
