"""Nodes that operators have drained: one shared document, so that it outlives each node, each leader and all of etcd.

The leader gives nothing to a node whose name is in it. The node itself need not hear of it, so one that hangs can be
drained too.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Final

from reach.cluster.base import ClusterUnavailable, DocumentChanged, Registry

DRAINED: Final = "drained"
"""Name of the document: a JSON list of node ids."""
MOST: Final = 1_000
"""Names in it."""
_TRIES: Final = 5


def drained(registry: Registry) -> frozenset[str]:
    """Names of the nodes that are to own nothing. One that cannot be read drains nobody."""
    document = registry.documents().get(DRAINED)
    if document is None:
        return frozenset()
    try:
        names = json.loads(document.data)
    except ValueError:
        return frozenset()
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()


async def set_drained(registry: Registry, node_id: str, *, undo: bool, required: Collection[str]) -> frozenset[str]:
    """Drains a node, or undoes that; returns all that are drained.

    Args:
        registry: Where it is kept.
        node_id: The node.
        undo: It gets its share again.
        required: Nodes of which at least one must be left to own what there is.

    Raises:
        ValueError: Nobody would be left, or too many are drained.
        ClusterError: It could not be written.
    """
    for _ in range(_TRIES):
        document = registry.documents().get(DRAINED)
        before = drained(registry)
        after = before - {node_id} if undo else before | {node_id}
        if not undo and not frozenset(required) - after:
            raise ValueError("nobody would be left to own anything")
        if len(after) > MOST:
            raise ValueError(f"{MOST} nodes are drained already: undo what is not needed any more")
        if after == before:
            return before
        data = json.dumps(sorted(after)).encode()
        try:
            await registry.put_document(DRAINED, data, document.revision if document is not None else 0)
        except DocumentChanged:
            continue
        except ClusterUnavailable as error:
            if not error.unknown:
                raise
            continue  # it shows when it is read again
        return after
    raise ClusterUnavailable("somebody else changes it all the time", unknown=True)
