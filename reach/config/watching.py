"""Hot reload of the vocabulary, the routes, and the policies of the configuration: validated first, taken whole, and a
bad file keeps the old rules."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from reach.config.loading import ConfigError
from reach.config.rules import check_capabilities, load_routes, load_vocabulary
from reach.config.sections import Config, Matcher, Router
from reach.core.intents import Routes
from reach.core.matching import rounded_down
from reach.core.policies import POLICIES, Policy, own_policy, with_threshold
from reach.core.vocabulary import Vocabulary

log = logging.getLogger("reach.rules")

LOOK_SECONDS = 0.5
"""How often the files are looked at. A change is taken when two looks in a row see the same: files are written in
pieces."""

Signature = tuple[Any, ...]


class Policies(NamedTuple):
    """The routing policies of a configuration."""

    known: dict[str, Policy]
    """The presets and its own ones, by name."""
    policy: Policy
    """Of pools that have none of their own."""
    by_type: dict[str, str]
    """Names of policies by agent type."""


def policies_of(router: Router, matcher: Matcher) -> Policies:
    """What a checked configuration says of policies."""
    least = matcher.threshold if matcher.embedder == "none" else min(matcher.threshold, matcher.embedding_threshold)
    known = {
        **with_threshold(POLICIES, rounded_down(least)),
        **{name: own_policy(name, weights) for name, weights in router.policies.items()},
    }
    return Policies(known, known[router.policy], dict(router.pool_policies))


class Rules:
    """The files and what they say.

    Args:
        config: The configuration that the server has begun with.
        apply: Takes new rules.
        file: The file of the configuration, and what reads it again; None: its policies stay as they are.
    """

    def __init__(
        self,
        config: Config,
        apply: Callable[[Vocabulary, Routes, Policies], Awaitable[None]],
        file: tuple[Path, Callable[[], Config]] | None = None,
    ) -> None:
        router = config.router
        self._vocabulary_file = Path(router.vocabulary_file) if router.vocabulary_file else None
        self._routes_file = Path(router.routes_file) if router.routes_file else None
        self._again = file[1] if file is not None else None
        files = (self._vocabulary_file, self._routes_file, file[0] if file is not None else None)
        self._files = [one for one in files if one is not None]
        self._strict = config.registry.strict
        self._apply = apply
        self._matcher = config.matcher
        self.policies = policies_of(router, config.matcher)
        self._loaded: Signature = ()
        self._loaded_once = False
        self._seen: Signature = ()
        self.vocabulary = Vocabulary()
        self.routes = Routes()
        self._reloading = asyncio.Lock()

    def load(self) -> None:
        """Reads the files for the first time. Blocks.

        Raises:
            ConfigError: They cannot be used.
        """
        self._loaded = self._seen = self._signature()
        self.vocabulary, self.routes, _ = self._read()

    async def reload(self) -> bool:
        """Reads the files again; False if they cannot be used, which is logged, and the old rules stay."""
        async with self._reloading:
            self._loaded = await asyncio.to_thread(self._signature)
            try:
                vocabulary, routes, policies = await asyncio.to_thread(self._read)
            except ConfigError as error:
                for problem in error.problems:
                    log.error("the old rules stay: %s", problem)
                return False
            self.vocabulary, self.routes, self.policies = vocabulary, routes, policies
            await self._apply(vocabulary, routes, policies)
            counts = {"skills": len(vocabulary.skills), "routes": len(routes), "policies": len(policies.known)}
            log.info("new rules", extra=counts)
            return True

    async def watch(self) -> None:
        """Reloads the files when they change."""
        while self._files:
            await asyncio.sleep(LOOK_SECONDS)
            before, self._seen = self._seen, await asyncio.to_thread(self._signature)
            if self._seen == before and self._seen != self._loaded:
                await self.reload()

    def _signature(self) -> Signature:
        return tuple(_stamp(path) for path in self._files)

    def _read(self) -> tuple[Vocabulary, Routes, Policies]:
        """All files, so that they are told of together.

        A file that cannot be used takes the others with it: they name each other.
        """
        problems: list[str] = []
        policies = self.policies
        try:
            if self._again is not None and self._loaded_once:
                policies = policies_of(self._again().router, self._matcher)
        except ConfigError as error:
            problems.extend(error.problems)
        self._loaded_once = True
        vocabulary, routes = Vocabulary(), Routes()
        try:
            if self._vocabulary_file is not None:
                vocabulary = load_vocabulary(self._vocabulary_file)
        except ConfigError as error:
            problems.extend(error.problems)
        try:
            if self._routes_file is not None:
                routes = load_routes(self._routes_file, policies.known)
        except ConfigError as error:
            problems.extend(error.problems)
        if not problems and self._routes_file is not None:
            unknown = check_capabilities(self._routes_file, routes, vocabulary)
            if self._strict:
                problems.extend(unknown)
            for text in unknown if not self._strict else ():
                log.warning("%s", text)
        if problems:
            raise ConfigError(problems)
        if vocabulary.skills == self.vocabulary.skills:
            vocabulary = self.vocabulary  # the same object: what is registered need not be read anew
        return vocabulary, routes, policies


def _stamp(path: Path) -> Signature:
    try:
        stat = path.stat()
    except OSError as error:
        return (error.errno,)
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
