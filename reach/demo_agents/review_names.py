"""Which names a Python module binds and uses, scope by scope: the base for several rules of the reviewer.

    names = read_names(ast.parse("import os\\n"))
    names.module.bindings["os"][0].kind, "os" in names.module.used        # ("import", False)

Scopes are those of the language reference (https://docs.python.org/3/reference/executionmodel.html): module, class,
function, and comprehension; what a class binds is not seen from its methods. The tree is walked with a stack of our
own: a chain of a thousand `elif` is deep, and must not end in a RecursionError.
"""

from __future__ import annotations

import ast
import threading
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_SEES_LOCALS = frozenset(("locals", "vars", "dir", "eval", "exec"))
_LONGEST_ANNOTATION = 1000  # characters of a string that is read as a type
_PARSING = threading.Lock()


@dataclass(slots=True)
class Binding:
    """One place that gives a name a value.

    `kind`: "import", "function", "async function", "class", "argument", "assignment" (plain, of one name, or
    `with … as`), "exception" (`except … as`), "other" (loops, unpacking, patterns, `:=`, re-exports).
    """

    name: str
    kind: str
    node: ast.AST


@dataclass(slots=True, eq=False)
class Scope:
    """One scope. `kind`: "module", "class", "function", "lambda" or "comprehension"."""

    kind: str
    node: ast.AST
    parent: Scope | None = None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    loads: list[ast.Name] = field(default_factory=list)
    used: set[str] = field(default_factory=set)  # from here or from within
    captured: set[str] = field(default_factory=set)  # from a scope within
    global_names: set[str] = field(default_factory=set)
    nonlocal_names: set[str] = field(default_factory=set)
    sees_locals: bool = False


@dataclass(slots=True)
class Names:
    """All scopes of a module, and the scope and parent of its nodes."""

    module: Scope
    scopes: list[Scope]
    scope_of: dict[ast.AST, Scope]  # of calls
    parent_of: dict[ast.AST, ast.AST]

    def find(self, name: str, scope: Scope) -> tuple[Scope, list[Binding]] | None:
        """Where a name used in this scope is bound; None if nowhere in the module, as for builtins."""
        return next(((where, where.bindings[name]) for where in _visible(name, scope, self.module)), None)


def parse(source: str, filename: str = "<source>") -> ast.Module:
    """`ast.parse` without its warnings about odd escapes in the reviewed code. Raises what `ast.parse` raises."""
    with _PARSING, warnings.catch_warnings():  # the list of filters belongs to the process
        warnings.simplefilter("ignore")
        return ast.parse(source, filename)


def read_names(tree: ast.Module) -> Names:
    """Collect the bindings and uses of a module."""
    reader = _Reader(tree)
    reader.read()
    reader.resolve()
    return Names(reader.module, reader.scopes, reader.scope_of, parents(tree))


def parents(tree: ast.AST) -> dict[ast.AST, ast.AST]:
    """The parent of each node."""
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def _visible(name: str, scope: Scope, module: Scope) -> Iterator[Scope]:
    """The scopes that a use of `name` in `scope` may mean, innermost first."""
    if name in scope.global_names:
        if name in module.bindings:
            yield module
        return
    where: Scope | None = scope
    while where is not None:
        # A class is seen only from its own body, and there a name not yet bound means the one outside.
        if name in where.bindings and (where.kind != "class" or where is scope):
            yield where
            if where.kind != "class":
                return
        where = where.parent


class _Reader:
    def __init__(self, tree: ast.Module) -> None:
        self.module = Scope("module", tree)
        self.scopes = [self.module]
        self.scope_of: dict[ast.AST, Scope] = {}
        self._bound: list[tuple[Scope, Binding]] = []
        # A node, its scope, and whether strings in it are types.
        self._stack: list[tuple[ast.AST, Scope, bool]] = [(node, self.module, False) for node in tree.body]

    def read(self) -> None:
        """Walk the tree; bindings are applied at the end, when all `global` statements are known."""
        while self._stack:
            node, scope, is_type = self._stack.pop()
            handler = getattr(self, f"_on_{type(node).__name__.lower()}", None)
            if handler is None or handler(node, scope, is_type):
                self._push(ast.iter_child_nodes(node), scope, is_type)
        for scope, binding in self._bound:
            if binding.name in scope.nonlocal_names:
                scope.loads.append(ast.Name(binding.name, ast.Load()))
                continue
            where = self.module if binding.name in scope.global_names else scope
            where.bindings.setdefault(binding.name, []).append(binding)

    def resolve(self) -> None:
        """Mark what each use means."""
        for scope in self.scopes:
            for load in scope.loads:
                for where in _visible(load.id, scope, self.module):
                    where.used.add(load.id)
                    if where is not scope:
                        where.captured.add(load.id)

    def _push(self, nodes: Iterable[ast.AST | None], scope: Scope, is_type: bool = False) -> None:
        self._stack.extend((node, scope, is_type) for node in nodes if node is not None)

    def _bind(self, scope: Scope, name: str, kind: str, node: ast.AST) -> None:
        self._bound.append((scope, Binding(name, kind, node)))

    def _load(self, scope: Scope, name: str, node: ast.Name | None = None) -> None:
        scope.loads.append(node or ast.Name(name, ast.Load()))

    def _open(self, kind: str, node: ast.AST, parent: Scope) -> Scope:
        scope = Scope(kind, node, parent)
        self.scopes.append(scope)
        return scope

    def _target(self, target: ast.expr, scope: Scope, kind: str) -> None:
        """Bind a target: a single name with this kind, what is unpacked as "other"."""
        if isinstance(target, ast.Name):
            self._bind(scope, target.id, kind, target)
        else:
            self._push([target], scope)

    def _on_functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope, _: bool) -> bool:
        is_async = isinstance(node, ast.AsyncFunctionDef)
        self._bind(scope, node.name, "async function" if is_async else "function", node)
        self._push(node.decorator_list, scope)
        inner = self._open("function", node, scope)
        self._arguments(node.args, scope, inner)
        self._push([node.returns], scope, is_type=True)
        self._type_parameters(node, inner)
        self._push(node.body, inner)
        return False

    _on_asyncfunctiondef = _on_functiondef

    def _on_lambda(self, node: ast.Lambda, scope: Scope, _: bool) -> bool:
        inner = self._open("lambda", node, scope)
        self._arguments(node.args, scope, inner)
        self._push([node.body], inner)
        return False

    def _arguments(self, arguments: ast.arguments, outer: Scope, inner: Scope) -> None:
        self._push([*arguments.defaults, *arguments.kw_defaults], outer)
        single = [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
        for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *single]:
            self._bind(inner, argument.arg, "argument", argument)
            self._push([argument.annotation], outer, is_type=True)

    def _type_parameters(self, node: ast.AST, scope: Scope) -> None:
        for parameter in getattr(node, "type_params", []):  # from Python 3.12 on
            self._bind(scope, parameter.name, "other", parameter)
            self._push(ast.iter_child_nodes(parameter), scope, is_type=True)

    def _on_classdef(self, node: ast.ClassDef, scope: Scope, _: bool) -> bool:
        self._bind(scope, node.name, "class", node)
        self._push([*node.decorator_list, *node.keywords], scope)
        self._push(node.bases, scope, is_type=True)
        inner = self._open("class", node, scope)
        self._type_parameters(node, inner)
        self._push(node.body, inner)
        return False

    def _on_comprehension_expression(self, node: ast.ListComp | ast.DictComp, scope: Scope, _: bool) -> bool:
        inner = self._open("comprehension", node, scope)
        first = node.generators[0]
        self._push([first.iter], scope)
        self._push([first.target, *first.ifs, *node.generators[1:]], inner)
        self._push([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt], inner)
        return False

    _on_listcomp = _on_setcomp = _on_generatorexp = _on_dictcomp = _on_comprehension_expression

    def _on_name(self, node: ast.Name, scope: Scope, _: bool) -> bool:
        if isinstance(node.ctx, ast.Store):
            self._bind(scope, node.id, "other", node)
        else:
            self._load(scope, node.id, node)
        return False

    def _on_namedexpr(self, node: ast.NamedExpr, scope: Scope, _: bool) -> bool:
        where = scope
        while where.kind == "comprehension" and where.parent is not None:
            where = where.parent
        self._bind(where, node.target.id, "other", node.target)
        self._push([node.value], scope)
        return False

    def _on_assign(self, node: ast.Assign, scope: Scope, _: bool) -> bool:
        for target in node.targets:
            self._target(target, scope, "assignment")
            self._exported(target, node.value, scope)
        self._push([node.value], scope)
        return False

    def _on_annassign(self, node: ast.AnnAssign, scope: Scope, _: bool) -> bool:
        self._target(node.target, scope, "other" if node.value is None else "assignment")
        self._exported(node.target, node.value, scope)
        self._push([node.annotation], scope, is_type=True)
        self._push([node.value], scope)
        return False

    def _on_augassign(self, node: ast.AugAssign, scope: Scope, _: bool) -> bool:
        self._exported(node.target, node.value, scope)
        if isinstance(node.target, ast.Name):
            self._load(scope, node.target.id)
        self._push([node.target, node.value], scope)
        return False

    def _exported(self, target: ast.AST, value: ast.AST | None, scope: Scope) -> None:
        """What stands in `__all__` is used."""
        if isinstance(target, ast.Name) and target.id == "__all__" and value is not None:
            for node in ast.walk(value):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    self._load(scope, node.value)

    def _on_withitem(self, node: ast.withitem, scope: Scope, _: bool) -> bool:
        self._push([node.context_expr], scope)
        if node.optional_vars is not None:
            self._target(node.optional_vars, scope, "assignment")
        return False

    def _on_excepthandler(self, node: ast.ExceptHandler, scope: Scope, _: bool) -> bool:
        if node.name:
            self._bind(scope, node.name, "exception", node)
        return True

    def _on_import(self, node: ast.Import | ast.ImportFrom, scope: Scope, _: bool) -> bool:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            return False
        for alias in node.names:
            if alias.name != "*":
                name = alias.asname or alias.name.partition(".")[0]
                # `import x as x` says: this is exported.
                self._bind(scope, name, "other" if alias.asname == alias.name else "import", alias)
        return False

    _on_importfrom = _on_import

    def _on_global(self, node: ast.Global, scope: Scope, _: bool) -> bool:
        scope.global_names.update(node.names)
        return False

    def _on_nonlocal(self, node: ast.Nonlocal, scope: Scope, _: bool) -> bool:
        scope.nonlocal_names.update(node.names)
        return False

    def _on_matchas(self, node: ast.MatchAs | ast.MatchStar, scope: Scope, _: bool) -> bool:
        if node.name:
            self._bind(scope, node.name, "other", node)
        return True

    _on_matchstar = _on_matchas

    def _on_matchmapping(self, node: ast.MatchMapping, scope: Scope, _: bool) -> bool:
        if node.rest:
            self._bind(scope, node.rest, "other", node)
        return True

    def _on_typealias(self, node: ast.AST, scope: Scope, _: bool) -> bool:
        inner = self._open("comprehension", node, scope)  # `type X[T] = …`, Python 3.12: T is seen in the value only
        self._type_parameters(node, inner)
        self._push([getattr(node, "name", None)], scope)
        self._push([getattr(node, "value", None)], inner, is_type=True)
        return False

    def _on_call(self, node: ast.Call, scope: Scope, is_type: bool) -> bool:
        self.scope_of[node] = scope
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        if isinstance(function, ast.Name) and name in _SEES_LOCALS:
            scope.sees_locals = True
        if isinstance(function, ast.Attribute):
            for argument in node.args:
                self._exported(function.value, argument, scope)  # __all__.extend([...])
        if name in ("cast", "TypeVar", "NewType") and node.args:
            self._push([node.func], scope)
            self._push([*node.args, *(keyword.value for keyword in node.keywords)], scope, is_type=True)
            return False
        return True

    def _on_constant(self, node: ast.Constant, scope: Scope, is_type: bool) -> bool:
        if is_type and isinstance(node.value, str) and len(node.value) <= _LONGEST_ANNOTATION:
            try:
                tree = parse(node.value.strip())
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return False
            self._push(tree.body, scope, is_type=True)
        return False
