"""Rules about the flow of control: length, complexity, code that is never reached."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from reach.demo_agents.review_base import Finding, Module, at, dotted
from reach.demo_agents.review_names import FUNCTIONS

LONGEST_FUNCTION = 70  # lines, without the docstring
# The limit of ten, and the measure: T. J. McCabe, "A Complexity Measure", IEEE Transactions on Software Engineering
# SE-2(4), 1976, pp. 308-320.
HIGHEST_COMPLEXITY = 10
_DEEPEST = 50  # nested branches followed when asking whether a block can end
_BLOCKS = ("body", "orelse", "finalbody")
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_ENDINGS = frozenset(("sys.exit", "os._exit", "exit", "quit"))


def complexity(function: ast.AST) -> int:
    """McCabe's number: one more than the decisions in a function, those of functions within it not counted.

    A decision is each if, elif, conditional expression, loop, except, case (but `case _`), further operand of and/or,
    and each for and if of a comprehension.
    """
    decisions = 0
    stack: list[ast.AST] = list(ast.iter_child_nodes(function))
    while stack:
        node = stack.pop()
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            continue
        if isinstance(node, (ast.If, ast.IfExp, ast.ExceptHandler, *_LOOPS)):
            decisions += 1
        elif isinstance(node, ast.BoolOp):
            decisions += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            decisions += 1 + len(node.ifs)
        elif isinstance(node, ast.match_case):
            anything = isinstance(node.pattern, ast.MatchAs) and node.pattern.pattern is None and node.guard is None
            decisions += not anything
        stack.extend(ast.iter_child_nodes(node))
    return decisions + 1


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the last one, without the docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def check_function(_: Module, node: ast.AST) -> Iterator[Finding]:
    """too-long-function, too-complex"""
    if not isinstance(node, FUNCTIONS):
        return
    lines = length(node)
    if lines > LONGEST_FUNCTION:
        yield at(node, "too-long-function", f"{node.name} has {lines} lines; {LONGEST_FUNCTION} are a good limit.")
    number = complexity(node)
    if number > HIGHEST_COMPLEXITY:
        message = f"{node.name} has a cyclomatic complexity of {number}; {HIGHEST_COMPLEXITY} is McCabe's limit."
        yield at(node, "too-complex", message)


def check_reach(_: Module, node: ast.AST) -> Iterator[Finding]:
    """unreachable-code"""
    for name in _BLOCKS:
        block = getattr(node, name, None)
        if not isinstance(block, list):
            continue
        for statement, following in itertools.pairwise(block):
            if not _ends(statement):
                continue
            # `return` and then `yield` makes a function an empty generator, on purpose.
            is_marker = isinstance(following, ast.Expr) and isinstance(following.value, (ast.Yield, ast.YieldFrom))
            if not is_marker:
                after = type(statement).__name__.lower()
                yield at(following, "unreachable-code", f"Nothing gets past the {after} in line {statement.lineno}.")
            break


def _ends(statement: ast.stmt, depth: int = 0) -> bool:
    """Whether control never reaches what stands after this statement."""
    if isinstance(statement, (ast.Return, ast.Raise, ast.Continue, ast.Break)):
        return True
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Call) and dotted(statement.value.func) in _ENDINGS
    if depth > _DEEPEST:
        return False
    if isinstance(statement, ast.If):
        return _block_ends(statement.body, depth) and _block_ends(statement.orelse, depth)
    if isinstance(statement, ast.Try):
        if _block_ends(statement.finalbody, depth):
            return True
        handled = all(_block_ends(handler.body, depth) for handler in statement.handlers)
        return handled and (_block_ends(statement.body, depth) or _block_ends(statement.orelse, depth))
    if isinstance(statement, ast.While):
        return isinstance(statement.test, ast.Constant) and bool(statement.test.value) and not _breaks(statement)
    return False


def _block_ends(block: list[ast.stmt], depth: int) -> bool:
    return any(_ends(statement, depth + 1) for statement in block)


def _breaks(loop: ast.While) -> bool:
    """Whether a `break` leaves this very loop."""
    stack: list[ast.AST] = list(loop.body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Break):
            return True
        if isinstance(node, _LOOPS):
            stack.extend(node.orelse)  # a break there belongs to the loop outside
        elif not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.expr)):
            stack.extend(ast.iter_child_nodes(node))
    return False
