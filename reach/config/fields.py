"""What all sections of the configuration are made of."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

Port = Annotated[int, Meta(ge=0, le=65_535)]
Calls = Annotated[int, Meta(ge=1, le=1_000_000)]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9._-]{1,64}\Z")]
PolicyName = Annotated[str, Meta(min_length=1, max_length=64)]
Text = Annotated[str, Meta(max_length=4096)]
Scope = Literal["agent", "caller", "reader", "operator"]


class Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all sections."""
