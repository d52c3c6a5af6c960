"""docs/configuration.md, made from the sections."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec

from reach.config.loading import CLIENT_VARIABLES, PREFIX
from reach.config.sections import Config

_PASSED_OVER: Final = ", ".join(f"`{name}`" for name in sorted(CLIENT_VARIABLES))
_HEAD: Final = f"""\
# Configuration

<!-- Written by `python -m reach.config`; change the sections in reach/config, not this page. -->

`reach serve --config FILE` reads a YAML file with the sections below. All keys are optional:

```yaml
server:
  port: 8900
storage:
  path: /var/lib/agentreach
telemetry:
  log_format: text
```

The environment overrides the file: `{PREFIX}<SECTION>_<KEY>`, for example `{PREFIX}SERVER_PORT=9000`; an empty value
does not count. Options of the command line override both. {_PASSED_OVER} belong to clients and are passed over.

An unknown key is an error, and so is what does not fit together; all problems are told at once, each with its line.
Times are seconds and sizes bytes, unless the name says otherwise.
"""


def reference() -> str:
    """The page about all fields."""
    parts = [_HEAD]
    for info in msgspec.structs.fields(Config):
        section = type(info.default)
        parts.append(f"\n## {info.name}\n\n{inspect.getdoc(section)}\n")
        texts = field_texts(section)
        for field in msgspec.structs.fields(section):
            text = " ".join(texts[field.name].split())
            parts.append(
                f"\n**`{info.name}.{field.name}`** ({_kind(field.type)}; default {_default(field)})  \n{text}\n"
            )
    return "".join(parts)


def field_texts(section: type[msgspec.Struct]) -> dict[str, str]:
    """The text under each field of a section, which Python itself throws away, so it is read from the source."""
    tree = ast.parse(inspect.getsource(sys.modules[section.__module__]))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == section.__name__)
    found = {}
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            found[field.target.id] = str(ast.literal_eval(text.value)) if is_text else ""  # type: ignore[attr-defined]
    return found


def _kind(kind: Any) -> str:
    meta = None
    if get_origin(kind) is Annotated:
        kind, meta = get_args(kind)
    if get_origin(kind) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(kind))
    words = {bool: "true or false", int: "whole number", float: "number", str: "text"}.get(kind, "list")
    if get_origin(kind) is dict:
        words = "mapping"
    if meta is not None and meta.ge is not None:
        return f"{words}, {_number(meta.ge)} to {_number(meta.le)}"
    return words


def _default(field: Any) -> str:
    if field.default_factory not in (msgspec.NODEFAULT, None) and (made := field.default_factory()):
        return f"`{json.dumps(made)}`"
    if field.default is msgspec.NODEFAULT or field.default in ("", None):
        return "empty"
    if isinstance(field.default, bool):
        return "`true`" if field.default else "`false`"
    return f"`{_number(field.default)}`"


def _number(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
