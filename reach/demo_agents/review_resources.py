"""Rule about files, sockets and the like that are opened and not surely closed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from reach.demo_agents.review_base import Finding, Module, at, dotted
from reach.demo_agents.review_names import Scope

_OPENERS = frozenset(
    "builtins.open io.open os.fdopen codecs.open gzip.open bz2.open lzma.open tarfile.open zipfile.ZipFile shelve.open "
    "socket.socket socket.create_connection urllib.request.urlopen sqlite3.connect tempfile.TemporaryFile "
    "tempfile.NamedTemporaryFile tempfile.TemporaryDirectory".split()
)
# These only read or write what they are given; other callees may take it over and close it.
_BORROWERS = frozenset(
    "load safe_load dump reader writer DictReader DictWriter list tuple sorted enumerate iter next len print".split()
)
_CLOSERS = frozenset(("close", "detach", "cleanup", "__exit__", "__enter__", "shutdown"))


def check_open(module: Module, node: ast.AST) -> Iterator[Finding]:
    """open-without-with: not in a `with`, and neither closed nor handed on."""
    if not isinstance(node, ast.Call) or not _opens(module, node):
        return
    if _leaks(module, node):
        yield at(node, "open-without-with", f"What {dotted(node.func)}() opens is not surely closed.")


def _opens(module: Module, call: ast.Call) -> bool:
    if module.is_builtin(call.func, call, "open"):
        return True
    name = dotted(call.func)
    return name in _OPENERS and module.is_imported(name.partition(".")[0], call)


def _leaks(module: Module, call: ast.Call) -> bool:
    parent = module.names.parent_of.get(call)
    if isinstance(parent, ast.keyword):
        parent = module.names.parent_of.get(parent)
    if isinstance(parent, ast.Attribute):
        return parent.attr not in _CLOSERS
    if isinstance(parent, ast.Call):
        return _borrows(parent)
    if isinstance(parent, (ast.Expr, ast.For, ast.AsyncFor, ast.comprehension)):
        return True
    target = _assigned_name(parent)
    scope = module.names.scope_of.get(call)
    return target is not None and scope is not None and _name_leaks(module, target, scope)


def _assigned_name(statement: ast.AST | None) -> str | None:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target: ast.expr = statement.targets[0]
    elif isinstance(statement, (ast.AnnAssign, ast.NamedExpr)):
        target = statement.target
    else:
        return None
    return target.id if isinstance(target, ast.Name) else None


def _name_leaks(module: Module, name: str, scope: Scope) -> bool:
    """Whether all that is done with a name is to use it: no close, no `with`, nobody else gets it."""
    if scope.kind == "class" or name in scope.captured | scope.global_names | scope.nonlocal_names:
        return False
    for load in scope.loads:
        if load.id != name:
            continue
        parent = module.names.parent_of.get(load)
        if isinstance(parent, ast.keyword):
            parent = module.names.parent_of.get(parent)
        used_only = (
            (isinstance(parent, ast.Attribute) and parent.attr not in _CLOSERS)
            or isinstance(parent, (ast.For, ast.AsyncFor, ast.comprehension))
            or (isinstance(parent, ast.Call) and _borrows(parent))
        )
        if not used_only:
            return False
    return True


def _borrows(call: ast.Call) -> bool:
    return dotted(call.func).rpartition(".")[2] in _BORROWERS
