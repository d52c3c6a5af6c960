"""From file, environment and options to a `Config`; every problem is told at once, each with where it comes from."""

from __future__ import annotations

import math
import os
import re
import socket
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from reach.config.fields import Section
from reach.config.nodes import NODE_LIMIT, entries, lower, read_root, shown, size
from reach.config.relations import broken_relations
from reach.config.sections import Config
from reach.errors import InvalidRequest

PREFIX: Final = "AGENT_REACH_"
CLIENT_VARIABLES: Final = frozenset({"AGENT_REACH_ADDR", "AGENT_REACH_API_KEY", "AGENT_REACH_API_KEY_FILE"})
"""Read by clients and agents, which may share an environment with the server; not ours."""


class ConfigError(InvalidRequest):
    """The configuration cannot be used. The message has one line per problem, and so has `problems`."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems), field="config")
        self.problems = tuple(problems)


class _Given(NamedTuple):
    """A value, and where it comes from."""

    value: object
    origin: str
    is_text: bool
    """Came as text, because its source has nothing else: it may be read as a number or a truth value."""


_SECTIONS: Final[Mapping[str, type[Section]]] = {
    info.name: type(info.default) for info in msgspec.structs.fields(Config)
}
_FIELDS: Final[Mapping[str, Any]] = {
    f"{name}.{info.name}": info.type for name, section in _SECTIONS.items() for info in msgspec.structs.fields(section)
}

_NO_WORDS: Final = (
    "server.client_identities", "agents.auth", "router.policies", "router.pool_policies", "webhooks.secrets",
    "webhooks.hosts", "cluster.endpoints",
)  # fmt: skip
"""Fields that are no single word: from the environment they come as YAML."""


def load(path: Path | str | None, environ: Mapping[str, str], overrides: Mapping[str, object] | None = None) -> Config:
    """The configuration of a server.

    Args:
        path: A YAML file, or None for defaults.
        environ: `AGENT_REACH_<SECTION>_<KEY>` overrides the file; an empty value does not count.
        overrides: `{"section.key": value}` overrides both; None does not count.

    Raises:
        ConfigError: With every problem, not only the first.
    """
    problems: list[str] = []
    given: dict[str, _Given] = {}
    if path is not None:
        given.update(_from_file(Path(path), problems))
    given.update(_from_environment(environ, problems))
    for name, value in (overrides or {}).items():
        if name not in _FIELDS:
            problems.append(f"option {_unknown(name, _FIELDS)}")
        elif value is not None:
            given[name] = _Given(value, "option", isinstance(value, str))
    sections: dict[str, dict[str, object]] = {name: {} for name in _SECTIONS}
    for name, item in given.items():
        section, _, key = name.partition(".")
        try:
            sections[section][key] = _converted(_FIELDS[name], item)
        except (msgspec.ValidationError, yaml.YAMLError, ValueError) as error:
            problems.append(f"{item.origin}: {name}: {lower(error)}; it is {shown(item.value)}")
    if problems:
        raise ConfigError(problems)
    parts: dict[str, Any] = {name: _SECTIONS[name](**values) for name, values in sections.items()}
    config = Config(**parts)
    problems = [
        ": ".join((*dict.fromkeys(given[name].origin for name in names if name in given), text))
        for names, text in broken_relations(config)
    ]
    if problems:
        raise ConfigError(problems)
    return _completed(config, environ)


# -- sources ----------------------------------------------------------------------------------------------------------


def _from_file(path: Path, problems: list[str]) -> Iterator[tuple[str, _Given]]:
    """All values of a file. YAML is read node by node, for the lines, and because PyYAML keeps the last of two keys."""
    read = read_root(path, problems)
    if read is None:
        return
    loader, root = read
    for section, section_line, body in entries(path, root, "", problems):
        if section not in _SECTIONS:
            problems.append(f"{path}:{section_line}: {_unknown(section, _SECTIONS)}")
            continue
        for key, line, node in entries(path, body, f"{section}.", problems):
            name = f"{section}.{key}"
            if name not in _FIELDS:
                problems.append(f"{path}:{line}: {_unknown(name, _FIELDS)}")
            elif size(node) > NODE_LIMIT:
                problems.append(f"{path}:{line}: {name} is too large")
            else:
                try:
                    yield name, _Given(loader.construct_object(node, deep=True), f"{path}:{line}", is_text=False)
                except (yaml.YAMLError, ValueError, RecursionError) as error:
                    problems.append(f"{path}:{line}: {name} is not YAML: {lower(error)}")


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> Iterator[tuple[str, _Given]]:
    names = {f"{PREFIX}{name.replace('.', '_').upper()}": name for name in _FIELDS}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in CLIENT_VARIABLES:
            continue
        if variable not in names:
            problems.append(f"environment: {_unknown(variable, names)}")
        elif environ[variable]:
            yield names[variable], _Given(environ[variable], f"environment: {variable}", is_text=True)


# -- values -----------------------------------------------------------------------------------------------------------


def _converted(kind: Any, item: _Given) -> object:
    """A value as its field wants it; msgspec.ValidationError or ValueError if it cannot be that."""
    value = item.value
    if item.is_text and any(kind is _FIELDS[name] for name in _NO_WORDS):
        value = yaml.safe_load(str(value))
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a finite number")
    converted = msgspec.convert(value, kind, strict=not item.is_text)
    if isinstance(converted, float) and not math.isfinite(converted):
        raise ValueError("must be a finite number")
    return converted


def _unknown(name: str, known: Mapping[str, object]) -> str:
    text = f"{shown(name)[1:-1]} is unknown"
    near = get_close_matches(name, known, n=1)
    if not near and "." in name:
        near = [other for other in known if other.rpartition(".")[2] == name.rpartition(".")[2]][:1]
    return f"{text}; did you mean {near[0]}?" if near else f"{text}; see docs/configuration.md"


def _completed(config: Config, environ: Mapping[str, str]) -> Config:
    """With what depends on the machine: the data folder as an absolute path, and the name of the node."""
    home = environ.get("HOME") or os.path.expanduser("~")
    if config.storage.path:
        path = Path(re.sub(r"^~(?=/|$)", lambda _: home, config.storage.path))
    else:
        base = environ.get("XDG_DATA_HOME", "")
        path = (Path(base) if os.path.isabs(base) else Path(home, ".local", "share")) / "agentreach"
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:58] or "node"
    node_id = config.server.node_id or f"{host}-{config.server.port}"
    return msgspec.structs.replace(
        config,
        storage=msgspec.structs.replace(config.storage, path=str(path.absolute())),
        server=msgspec.structs.replace(config.server, node_id=node_id),
    )
