"""Hot reload of the vocabulary and the routes: validated first, taken whole, and a bad file keeps the old rules."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

from reach.config.loading import ConfigError
from reach.config.rules import check_capabilities, load_routes, load_vocabulary
from reach.core.intents import Routes
from reach.core.vocabulary import Vocabulary

log = logging.getLogger("reach.rules")

LOOK_SECONDS = 0.5
"""How often the files are looked at. A change is taken when two looks in a row see the same: files are written in
pieces."""

Signature = tuple[Any, ...]


class Rules:
    """The files and what they say.

    Args:
        vocabulary: The file of the vocabulary; None: there is none.
        routes: The file of the routes; None: there is none.
        policies: Names of the routing policies that there are.
        strict: Routes must name skills of the vocabulary.
        apply: Takes new rules.
    """

    def __init__(
        self,
        vocabulary: Path | None,
        routes: Path | None,
        policies: Collection[str],
        strict: bool,
        apply: Callable[[Vocabulary, Routes], Awaitable[None]],
    ) -> None:
        self._vocabulary_file = vocabulary
        self._routes_file = routes
        self._policies = policies
        self._strict = strict
        self._apply = apply
        self._loaded: Signature = ()
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
        self.vocabulary, self.routes = self._read()

    async def reload(self) -> bool:
        """Reads the files again; False if they cannot be used, which is logged, and the old rules stay."""
        async with self._reloading:
            self._loaded = await asyncio.to_thread(self._signature)
            try:
                vocabulary, routes = await asyncio.to_thread(self._read)
            except ConfigError as error:
                for problem in error.problems:
                    log.error("the old rules stay: %s", problem)
                return False
            self.vocabulary, self.routes = vocabulary, routes
            await self._apply(vocabulary, routes)
            log.info("new rules", extra={"skills": len(vocabulary.skills), "routes": len(routes)})
            return True

    async def watch(self) -> None:
        """Reloads the files when they change."""
        while self._vocabulary_file is not None or self._routes_file is not None:
            await asyncio.sleep(LOOK_SECONDS)
            before, self._seen = self._seen, await asyncio.to_thread(self._signature)
            if self._seen == before and self._seen != self._loaded:
                await self.reload()

    def _signature(self) -> Signature:
        return tuple(_stamp(path) for path in (self._vocabulary_file, self._routes_file) if path is not None)

    def _read(self) -> tuple[Vocabulary, Routes]:
        """Both files, so that they are told of together.

        A file that cannot be used takes the other one with it: they may name each other.
        """
        problems: list[str] = []
        vocabulary, routes = Vocabulary(), Routes()
        try:
            if self._vocabulary_file is not None:
                vocabulary = load_vocabulary(self._vocabulary_file)
        except ConfigError as error:
            problems.extend(error.problems)
        try:
            if self._routes_file is not None:
                routes = load_routes(self._routes_file, self._policies)
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
        return vocabulary, routes


def _stamp(path: Path) -> Signature:
    try:
        stat = path.stat()
    except OSError as error:
        return (error.errno,)
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
