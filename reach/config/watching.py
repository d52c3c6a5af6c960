"""Hot reload of the vocabulary, the routes, and the policies of the configuration: validated first, taken whole, and a
bad file keeps the old rules."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from reach.config.loading import ConfigError
from reach.config.nodes import content_of
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
_NAMES = ("skills.yaml", "routes.yaml")
"""What texts are called where this node has no file of that kind."""


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


class Texts(NamedTuple):
    """What the files say, unread: nodes of a cluster share it."""

    vocabulary: bytes | None
    routes: bytes | None
    router: Router
    """Of which the policies count."""


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
        self._named = (self._vocabulary_file, self._routes_file)
        files = (*self._named, file[0] if file is not None else None)
        self._files = [one for one in files if one is not None]
        self._strict = config.registry.strict
        self._router = router
        self.publish: Callable[[Texts], Awaitable[None]] | None = None
        """Has all nodes take what the files of this one say, this one too (`sharing.py`); None: it is alone."""
        self._apply = apply
        self._matcher = config.matcher
        self.policies = policies_of(router, config.matcher)
        self._loaded: Signature = ()
        self._loaded_once = False
        self._seen: Signature = ()
        self.vocabulary = Vocabulary()
        self.routes = Routes()
        self._reloading = asyncio.Lock()

    @property
    def router(self) -> Router:
        """What the configuration says now."""
        return self._router

    def load(self) -> None:
        """Reads the files for the first time. Blocks.

        Raises:
            ConfigError: They cannot be used.
        """
        self._loaded = self._seen = self._signature()
        self.vocabulary, self.routes, _ = self.parsed(self.texts())

    async def reload(self) -> bool:
        """Reads the files again; False if they cannot be used, which is logged, and the old rules stay."""
        async with self._reloading:
            self._loaded = await asyncio.to_thread(self._signature)
            try:
                texts = await asyncio.to_thread(self.texts)
                found = await asyncio.to_thread(self.parsed, texts)
                if self.publish is not None:
                    await self.publish(texts)
                    return True
            except ConfigError as error:
                for problem in error.problems:
                    log.error("the old rules stay: %s", problem)
                return False
            await self._use(*found)
            return True

    async def take(self, texts: Texts) -> None:
        """Uses what another node's files say, or this one's said at another time.

        Raises:
            ConfigError: They cannot be used; the old rules stay.
        """
        async with self._reloading:
            await self._use(*await asyncio.to_thread(self.parsed, texts))

    async def _use(self, vocabulary: Vocabulary, routes: Routes, policies: Policies) -> None:
        self.vocabulary, self.routes, self.policies = vocabulary, routes, policies
        await self._apply(vocabulary, routes, policies)
        counts = {"skills": len(vocabulary.skills), "routes": len(routes), "policies": len(policies.known)}
        log.info("new rules", extra=counts)

    async def watch(self) -> None:
        """Reloads the files when they change."""
        while self._files:
            await asyncio.sleep(LOOK_SECONDS)
            before, self._seen = self._seen, await asyncio.to_thread(self._signature)
            if self._seen == before and self._seen != self._loaded:
                await self.reload()

    def _signature(self) -> Signature:
        return tuple(_stamp(path) for path in self._files)

    def texts(self) -> Texts:
        """What the files say now. Blocks.

        Raises:
            ConfigError: One cannot be read, or what the configuration says of policies cannot be used.
        """
        problems: list[str] = []
        try:
            if self._again is not None and self._loaded_once:
                self._router = self._again().router
        except ConfigError as error:
            problems.extend(error.problems)
        self._loaded_once = True
        skills, routes = (content_of(path, problems) if path is not None else None for path in self._named)
        texts = Texts(skills, routes, self._router)
        if problems:
            raise ConfigError([*problems, *self._other_problems(texts)])
        return texts

    def _other_problems(self, texts: Texts) -> tuple[str, ...]:
        """What is wrong with the files that could be read, so that all is told together."""
        try:
            self.parsed(texts)
        except ConfigError as error:
            return error.problems
        return ()

    def parsed(self, texts: Texts) -> tuple[Vocabulary, Routes, Policies]:
        """All that texts say, so that what is wrong is told together.

        A text that cannot be used takes the others with it: they name each other.

        Raises:
            ConfigError: They cannot be used.
        """
        problems: list[str] = []
        try:
            policies = policies_of(texts.router, self._matcher)
        except (KeyError, ValueError) as error:  # of another node's; our own are checked when they are read
            raise ConfigError([f"router.policies: {error}"]) from error
        vocabulary, routes = Vocabulary(), Routes()
        skills_file, routes_file = (path or Path(name) for path, name in zip(self._named, _NAMES, strict=True))
        try:
            if texts.vocabulary is not None:
                vocabulary = load_vocabulary(skills_file, texts.vocabulary)
        except ConfigError as error:
            problems.extend(error.problems)
        try:
            if texts.routes is not None:
                routes = load_routes(routes_file, policies.known, texts.routes)
        except ConfigError as error:
            problems.extend(error.problems)
        if not problems and texts.routes is not None:
            unknown = check_capabilities(routes_file, routes, vocabulary)
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
