"""What the rules of the reviewer share: a finding, the table of rules, and the module under review."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from reach.demo_agents.review_names import Names

_NOQA = re.compile(r"#\s*noqa\b(?::\s*(?P<codes>[\w\-]+(?:[,\s]+[\w\-]+)*))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Rule:
    """`advice` in one sentence; `codes`: what flake8, pylint, bandit or ruff call the same thing, for `# noqa`."""

    advice: str
    codes: frozenset[str]


def _rule(advice: str, codes: str) -> Rule:
    return Rule(advice, frozenset(codes.split()))


RULES = {
    "bare-except": _rule("Name the exceptions you expect; a bare except also catches Ctrl-C and exits.", "E722"),
    "swallowed-exception": _rule("Handle it, log it, or catch a narrower one.", "S110 S112 BLE001 W0703"),
    "mutable-default": _rule("Use None and make a new one inside: the default is shared by all calls.", "B006 W0102"),
    "none-comparison": _rule("Use `is None` or `is not None`: == can be overridden.", "E711"),
    "unused-import": _rule("Remove it.", "F401 W0611"),
    "unused-variable": _rule("Remove it, or name it _ if it must be there.", "F841 W0612"),
    "too-long-function": _rule("Move a part with a name of its own into a function.", "PLR0915 R0915"),
    "too-complex": _rule("Split it, or turn branches into a table.", "C901 PLR0912 R0912"),
    "shadowed-builtin": _rule(
        "Choose another name; the builtin cannot be reached here any more.", "A001 A002 A004 W0622"
    ),
    "f-string-without-placeholder": _rule("Drop the f, or put in the value that is missing.", "F541 W1309"),
    "assert-on-tuple": _rule("Remove the parentheses: a tuple that is not empty is always true.", "F631 W0199"),
    "missing-await": _rule("Put await in front; as it stands nothing of it ever runs.", ""),
    "open-without-with": _rule("Use `with`, so that it is closed when an exception comes too.", "SIM115 R1732"),
    "eval-or-exec": _rule("Use ast.literal_eval, a table of functions, or a parser.", "S307 S102 W0122 W0123"),
    "shell-command": _rule(
        "Pass a list of arguments and no shell, else an argument can become a command.", "S602 S605"
    ),
    "sql-by-formatting": _rule("Bind values with placeholders (`?`, `%s`) instead.", "S608"),
    "unreachable-code": _rule("Remove it, or correct what leaves too early.", "W0101"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark on a place in the source; `line` and `column` begin at 1."""

    line: int
    column: int
    rule: str
    message: str

    @property
    def advice(self) -> str:
        """What to do about it."""
        return RULES[self.rule].advice

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.rule}: {self.message} {self.advice}"


@dataclass(frozen=True, slots=True)
class Module:
    """A module under review."""

    tree: ast.Module
    lines: list[str]
    names: Names

    def is_silenced(self, finding: Finding) -> bool:
        """Whether the line says `# noqa`, alone or with this rule or a code of another tool for it."""
        line = self.lines[finding.line - 1] if finding.line <= len(self.lines) else ""
        match = _NOQA.search(line)
        if match is None:
            return False
        codes = {code.lower() for code in re.split(r"[,\s]+", match["codes"])} if match["codes"] else None
        return codes is None or finding.rule in codes or any(c.lower() in codes for c in RULES[finding.rule].codes)

    def is_builtin(self, node: ast.expr, scope_node: ast.Call, *names: str) -> bool:
        """Whether an expression names one of these builtins, not bound to anything else here."""
        if not isinstance(node, ast.Name) or node.id not in names:
            return False
        scope = self.names.scope_of.get(scope_node, self.names.module)
        return self.names.find(node.id, scope) is None

    def is_imported(self, name: str, scope_node: ast.Call) -> bool:
        """Whether a name used at this call is an imported one."""
        found = self.names.find(name, self.names.scope_of.get(scope_node, self.names.module))
        return found is not None and all(binding.kind == "import" for binding in found[1])


def at(node: ast.AST, rule: str, message: str) -> Finding:
    """A finding at a node."""
    return Finding(getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1, rule, message)


def dotted(node: ast.AST) -> str:
    """`a.b.c` as text, "" for anything that is not a chain of names."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])
