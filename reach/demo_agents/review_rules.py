"""Rules that look at one place: exceptions, defaults, comparisons, names, strings, calls."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Iterator

from reach.demo_agents.review_base import Finding, Module, at, dotted
from reach.demo_agents.review_flow import check_function, check_reach
from reach.demo_agents.review_names import FUNCTIONS, Binding, Scope
from reach.demo_agents.review_resources import check_open

Check = Callable[[Module, ast.AST], Iterator[Finding]]

_FROM_SITE = frozenset(("copyright", "credits", "exit", "help", "license", "quit"))
_BUILTINS = frozenset(name for name in dir(builtins) if not name.startswith("_")) - _FROM_SITE
_MUTABLE_CALLS = frozenset(
    "list dict set bytearray defaultdict deque Counter OrderedDict collections.defaultdict collections.deque "
    "collections.Counter collections.OrderedDict".split()
)
_COROUTINES_OF_ASYNCIO = frozenset(
    "sleep wait wait_for open_connection start_server to_thread create_subprocess_exec create_subprocess_shell".split()
)
_SQL = re.compile(
    r"^\s*(?:SELECT\b.*\bFROM\b|INSERT\s+INTO\b|UPDATE\b.*\bSET\b|DELETE\s+FROM\b|(?:CREATE|DROP|ALTER)\s+TABLE\b)",
    re.IGNORECASE | re.DOTALL,
)
_GAP = "\x00"


def check_except(_: Module, node: ast.AST) -> Iterator[Finding]:
    """bare-except (unless it raises again), swallowed-exception"""
    if not isinstance(node, ast.ExceptHandler):
        return
    passed_on = any(
        isinstance(inner, ast.Raise) and inner.exc is None for part in node.body for inner in ast.walk(part)
    )
    if node.type is None and not passed_on:
        yield at(node, "bare-except", "This catches everything.")
    caught = dotted(node.type) if node.type is not None else "everything"
    is_broad = caught in ("everything", "Exception", "BaseException")
    if is_broad and all(_does_nothing(statement) for statement in node.body):
        yield at(node, "swallowed-exception", f"It catches {caught} and does nothing with it.")


def _does_nothing(statement: ast.stmt) -> bool:
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_constant or isinstance(statement, (ast.Pass, ast.Continue))


def check_defaults(_: Module, node: ast.AST) -> Iterator[Finding]:
    """mutable-default"""
    if not isinstance(node, (*FUNCTIONS, ast.Lambda)):
        return
    for default in [*node.args.defaults, *node.args.kw_defaults]:
        literal = isinstance(default, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp))
        if literal or (isinstance(default, ast.Call) and dotted(default.func) in _MUTABLE_CALLS):
            assert default is not None
            name = "a lambda" if isinstance(node, ast.Lambda) else node.name
            yield at(default, "mutable-default", f"A default of {name} can be changed.")


def check_comparison(_: Module, node: ast.AST) -> Iterator[Finding]:
    """none-comparison"""
    if not isinstance(node, ast.Compare):
        return
    operands = [node.left, *node.comparators]
    for i, operator in enumerate(node.ops):
        if isinstance(operator, (ast.Eq, ast.NotEq)) and any(map(_is_none, operands[i : i + 2])):
            sign = "==" if isinstance(operator, ast.Eq) else "!="
            yield at(node, "none-comparison", f"It compares with None by {sign}.")
            return


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def check_strings(module: Module, node: ast.AST) -> Iterator[Finding]:
    """f-string-without-placeholder, sql-by-formatting"""
    if isinstance(node, ast.JoinedStr) and not any(isinstance(part, ast.FormattedValue) for part in node.values):
        # A format specification (`{x:>10}`) is a JoinedStr too.
        if not isinstance(module.names.parent_of.get(node), ast.FormattedValue):
            yield at(node, "f-string-without-placeholder", "Nothing is put into this f-string.")
    elif isinstance(node, (ast.JoinedStr, ast.BinOp, ast.Call)):
        parent = module.names.parent_of.get(node)
        if isinstance(parent, ast.BinOp) and isinstance(node, ast.BinOp):
            return  # seen with the whole
        text = _with_gaps(node)
        if text is not None and _GAP in text and _SQL.match(text):
            yield at(node, "sql-by-formatting", "Values are put into the text of an SQL statement.")


def _with_gaps(node: ast.AST) -> str | None:
    """A formatted string with a NUL for each value put in; None if the node is not one. CONSTANTS count as text."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return f"{_text(node.left)}{_GAP}" if _text(node.left) != _GAP else None
    if isinstance(node, ast.Call):
        is_format = isinstance(node.func, ast.Attribute) and node.func.attr == "format"
        return f"{_text(node.func.value)}{_GAP}" if is_format and isinstance(node.func, ast.Attribute) else None
    parts: list[str] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts.append(_text(node.right))
        node = node.left
    return "".join([_text(node), *reversed(parts)]) if parts else None


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.replace(_GAP, " ")
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    inner = node.value if isinstance(node, ast.FormattedValue) else node
    name = dotted(inner).rpartition(".")[2]
    return name if name.isupper() else _GAP


def check_assert(_: Module, node: ast.AST) -> Iterator[Finding]:
    """assert-on-tuple"""
    if isinstance(node, ast.Assert) and isinstance(node.test, ast.Tuple) and node.test.elts:
        yield at(node, "assert-on-tuple", "This assert can never fail.")


def check_calls(module: Module, node: ast.AST) -> Iterator[Finding]:
    """eval-or-exec, shell-command"""
    if not isinstance(node, ast.Call):
        return
    name = dotted(node.func)
    if module.is_builtin(node.func, node, "eval", "exec"):
        yield at(node, "eval-or-exec", f"{name}() runs whatever text it is given.")
    if name in ("os.system", "os.popen") and module.is_imported("os", node):
        yield at(node, "shell-command", f"{name}() gives its text to a shell.")
    for keyword in node.keywords:
        if keyword.arg == "shell" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True:
            yield at(node, "shell-command", f"{name or 'this call'}() gives its text to a shell.")


def check_await(module: Module, node: ast.AST) -> Iterator[Finding]:
    """missing-await: a coroutine function of this module (or of asyncio) called as a statement"""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return
    call = node.value
    scope = module.names.scope_of.get(call, module.names.module)
    name = dotted(call.func)
    owner, _, attribute = name.rpartition(".")
    if not owner:
        found = module.names.find(name, scope) if name else None
        is_coroutine = found is not None and _all_coroutines(found[1])
    elif owner == "asyncio":
        is_coroutine = attribute in _COROUTINES_OF_ASYNCIO and module.is_imported("asyncio", call)
    else:
        methods = _methods(owner, scope)
        is_coroutine = _all_coroutines(methods.get(attribute, []))
    if is_coroutine:
        yield at(node, "missing-await", f"{name}() makes a coroutine that nobody awaits.")


def _methods(owner: str, scope: Scope) -> dict[str, list[Binding]]:
    """If `owner` is the first argument of the method we are in (self), the names its class binds."""
    where: Scope | None = scope
    while where is not None and where.kind != "function":
        where = where.parent
    if where is None or where.parent is None or where.parent.kind != "class" or not isinstance(where.node, FUNCTIONS):
        return {}
    arguments = [*where.node.args.posonlyargs, *where.node.args.args]
    return where.parent.bindings if arguments and arguments[0].arg == owner else {}


def _all_coroutines(bindings: list[Binding]) -> bool:
    """Whether all of these are plain `async def`: no generator, nothing that a decorator may have replaced."""
    return bool(bindings) and all(
        isinstance(binding.node, ast.AsyncFunctionDef) and not binding.node.decorator_list and not _yields(binding.node)
        for binding in bindings
    )


def _yields(function: ast.AsyncFunctionDef) -> bool:
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            stack.extend(ast.iter_child_nodes(node))
    return False


CHECKS: tuple[Check, ...] = (
    check_except,
    check_defaults,
    check_comparison,
    check_strings,
    check_assert,
    check_calls,
    check_await,
    check_open,
    check_function,
    check_reach,
)


def check_names(module: Module) -> Iterator[Finding]:
    """unused-import, unused-variable, shadowed-builtin; for the whole module, in no order"""
    for scope in module.names.scopes:
        for name, bindings in scope.bindings.items():
            if name in _BUILTINS and scope.kind != "class":
                yield at(bindings[0].node, "shadowed-builtin", f"{name} is a builtin.")
            if name in scope.used or scope.kind == "class":
                continue
            for binding in bindings:
                if binding.kind == "import" and not _is_trial(module, binding.node):
                    yield at(binding.node, "unused-import", f"{_imported(binding.node)} is imported but never used.")
            if scope.kind == "function" and not scope.sees_locals and not name.startswith("_"):
                kinds = {binding.kind for binding in bindings}
                if kinds <= {"assignment", "exception"}:
                    yield at(bindings[0].node, "unused-variable", f"{name} gets a value but is never used.")


def _imported(node: ast.AST) -> str:
    return node.name if isinstance(node, ast.alias) else ""


def _is_trial(module: Module, node: ast.AST) -> bool:
    """Whether an import stands in a `try` that expects it to fail: then it only asks whether something is there."""
    parent = module.names.parent_of.get(module.names.parent_of.get(node, node))
    if not isinstance(parent, ast.Try):
        return False
    caught = [n for handler in parent.handlers if handler.type for n in ast.walk(handler.type)]
    return any(dotted(n) in ("ImportError", "ModuleNotFoundError", "Exception") for n in caught)
