"""YAML read node by node: for the lines of what is wrong, and because PyYAML keeps the last of two equal keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml

FILE_LIMIT: Final = 1 << 20
"""Bytes of a file."""
NODE_LIMIT: Final = 20_000
"""Nodes under one node, each alias counted anew."""


def content_of(path: Path, problems: list[str]) -> bytes | None:
    """What is in a file, as far as it may be read; None if it cannot be, which is told."""
    try:
        with path.open("rb") as file:
            return file.read(FILE_LIMIT + 1)
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
        return None


def read_root(
    path: Path, problems: list[str], content: bytes | None = None
) -> tuple[yaml.SafeLoader, yaml.Node] | None:
    """The root of a file and what makes values of its nodes; None if it is empty or cannot be read, which is told.
    `content`: what is in it, where that is known."""
    if content is None and (content := content_of(path, problems)) is None:
        return None
    if len(content) > FILE_LIMIT:
        problems.append(f"{path}: is larger than {FILE_LIMIT} bytes")
        return None
    try:
        loader = yaml.SafeLoader(content)
        root = loader.get_single_node()
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        problems.append(f"{where}: is not YAML: {getattr(error, 'problem', None) or lower(error)}")
        return None
    return None if root is None else (loader, root)


def entries(path: Path, node: yaml.Node, prefix: str, problems: list[str]) -> Iterator[tuple[str, int, yaml.Node]]:
    """Keys of a mapping with their lines, each once. A section without a body is an empty one."""
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
        return
    if not isinstance(node, yaml.MappingNode):
        what = f"section {prefix.rstrip('.')}" if prefix else "the file"
        problems.append(f"{path}:{node.start_mark.line + 1}: {what} must hold keys and values")
        return
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else "?"
        if key in seen:
            problems.append(f"{path}:{line}: {prefix}{key} is there twice, first in line {seen[key]}")
            continue
        seen[key] = line
        yield key, line, value_node


def size(node: yaml.Node) -> int:
    """Nodes under a node, each alias counted anew, until over the limit: few aliases can stand for billions."""
    count, waiting = 0, [node]
    while waiting and count <= NODE_LIMIT:
        count += 1
        one = waiting.pop()
        if isinstance(one, yaml.SequenceNode):
            waiting.extend(one.value)
        elif isinstance(one, yaml.MappingNode):
            for pair in one.value:
                waiting.extend(pair)
    return count


def lower(error: BaseException) -> str:
    """The words of an error, to be put behind a colon."""
    text = " ".join(re.sub(r"`(.*?)`", r"\1", str(error)).split())
    return text[:1].lower() + text[1:]


def shown(value: object) -> str:
    """A value as a message shows it."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
