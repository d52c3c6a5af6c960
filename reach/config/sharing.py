"""The rules of a cluster: vocabulary, routes and policies, in one document that all nodes follow (RTE-6).

The document is the truth. The first node that starts writes it; from then on a node writes it when its own files change
while it runs, or on SIGHUP. A node that starts takes what is there, whatever its files say. A document that a node
cannot use (another version wrote it) changes nothing there.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from typing import Any, Final

import msgspec

from reach.cluster.base import ClusterError, DocumentChanged, Registry, Unsubscribe
from reach.config.loading import ConfigError
from reach.config.sections import Router
from reach.config.watching import Rules, Texts

log = logging.getLogger("reach.rules")

RULES: Final = "rules"
"""Name of the document."""
MOST_BYTES: Final = 1 << 20
"""Of the document: etcd takes 1.5 MiB."""
_POLICIES: Final = ("policy", "policies", "pool_policies")


class SharedRules:
    """See the module.

    Args:
        rules: Of this node, loaded.
        registry: Where they are shared; running.
        node_id: This node.
    """

    def __init__(self, rules: Rules, registry: Registry, node_id: str) -> None:
        self._rules = rules
        self._registry = registry
        self._node_id = node_id
        self._taken: bytes | None = None
        self._stirred = asyncio.Event()
        self._end: Unsubscribe = lambda: None

    async def join(self) -> None:
        """Takes what the cluster has, or gives it what this node has. Before the node takes part."""
        self._end = self._registry.subscribe_documents(self._changed)
        self._rules.publish = self.publish
        if RULES not in self._registry.documents():
            own = await asyncio.to_thread(self._rules.texts)
            data = written(own, self._node_id)
            try:
                await self._registry.put_document(RULES, data, expected=0)
                self._taken = data
            except DocumentChanged:
                pass  # another one starts at the same time
            except ClusterError as error:
                log.warning("the rules of this node are not shared: %s", error)
        await self._take()

    async def publish(self, texts: Texts) -> None:
        """Has all nodes take these.

        Raises:
            ConfigError: They are too large, or etcd cannot be asked.
        """
        data = written(texts, self._node_id)
        if len(data) > MOST_BYTES:
            raise ConfigError([f"the rules are too large to be shared: {len(data)} bytes, at most {MOST_BYTES}"])
        try:
            await self._registry.put_document(RULES, data)
        except ClusterError as error:
            raise ConfigError([f"they cannot be shared: {error}; try again with SIGHUP"]) from error
        self._stirred.set()

    async def run(self) -> None:
        """Follows the document until it is cancelled."""
        try:
            while True:
                await self._stirred.wait()
                self._stirred.clear()
                await self._take()
        finally:
            self._end()

    def _changed(self, name: str) -> None:
        if name == RULES:
            self._stirred.set()

    async def _take(self) -> None:
        document = self._registry.documents().get(RULES)
        if document is None or document.data == self._taken:
            return
        self._taken = document.data
        try:
            texts, origin = read(document.data, self._rules.router)
            await self._rules.take(texts)
        except ConfigError as error:
            for problem in error.problems:
                log.error("the old rules stay, the cluster has others: %s", problem)
        else:
            log.info("rules of the cluster", extra={"from": origin, "revision": document.revision})


def written(texts: Texts, node_id: str) -> bytes:
    """The document: JSON, with the files as they are."""
    router = {name: getattr(texts.router, name) for name in _POLICIES}
    files = {
        name: None if data is None else base64.b64encode(data).decode()
        for name, data in (("vocabulary", texts.vocabulary), ("routes", texts.routes))
    }
    return json.dumps({"from": node_id, "router": router, **files}, sort_keys=True).encode()


def read(data: bytes, router: Router) -> tuple[Texts, str]:
    """What a document says, and who wrote it; `router` has what is not shared.

    Raises:
        ConfigError: It cannot be used.
    """
    try:
        said: dict[str, Any] = json.loads(data)
        merged = msgspec.structs.replace(router, **{name: said["router"][name] for name in _POLICIES})
        merged = msgspec.convert(msgspec.to_builtins(merged), Router)
        files = [None if said[name] is None else base64.b64decode(said[name]) for name in ("vocabulary", "routes")]
        return Texts(files[0], files[1], merged), str(said.get("from", ""))
    except (ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
        raise ConfigError([f"what another node has shared cannot be read: {error}"]) from error
