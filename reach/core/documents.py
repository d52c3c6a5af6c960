"""Capability documents, as far as routing looks at them (REG-4)."""

from __future__ import annotations

from typing import NamedTuple


class Document(NamedTuple):
    """What an agent says of one capability (REG-4), as far as routing looks at it."""

    declared: str
    """The name as the agent gave it."""
    name: str
    """The canonical name: the vocabulary's word for it."""
    version: str = ""
    schema: str = ""
    """JSON Schema of the parameters as text; empty: anything."""
    schema_id: str = ""
    """Digest of the schema; empty if there is none."""
    digest: str = ""
    """Digest of the whole document, as declared."""
    description: str = ""
    examples: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    input_media_types: tuple[str, ...] = ()
    output_media_types: tuple[str, ...] = ()
    latency_ms: int = 0
    """How long it usually takes, as declared; 0: not said."""
    effects: int = 0
    """What running it twice would do (an `EffectKind`), where a task does not say; 0: not said."""
    cost: int = 0
    """Slots that a task takes, where it does not say; 0: not said."""


BY_CLASSIFIER = ("~classifier", 0)
"""Stands among the documents of a requirement whose text a model has sorted: a document that nobody has."""


def schema_key(capability: str, schema_id: str) -> str:
    """The key of all documents of a capability (canonical name) that have this schema."""
    return f"{capability}\0{schema_id}"
