"""The rows of a batch: what a later step says of what an earlier one said."""

from __future__ import annotations

from reach.core.rows import AgentGone, AgentRow, Writes


def row(name: str, boot_id: str = "b", agent_type: str = "echo") -> AgentRow:
    return AgentRow("acme", name, agent_type, boot_id, 1, (), b"", 0, 1)


def gone(name: str) -> AgentGone:
    return AgentGone("acme", name, "echo")


def test_REG_2_who_says_something_and_leaves_in_one_batch_is_gone() -> None:
    """In a store those who are gone come first, so the earlier row would have stayed. Found by the simulation."""
    batch, later = Writes(), Writes()
    batch.agents += [row("one"), row("two"), row("one", agent_type="other")]
    later.agent_goes(gone("one"))
    batch.merge(later)
    assert batch.agents == [row("two"), row("one", agent_type="other")]
    assert batch.agents_gone == [gone("one")]


def test_REG_2_who_leaves_and_joins_again_in_one_batch_is_there() -> None:
    batch, later = Writes(), Writes()
    batch.agents.append(row("one"))
    batch.agent_goes(gone("one"))
    assert batch.agents == []
    later.agents.append(row("one", "c"))
    batch.merge(later)
    assert (batch.agents, batch.agents_gone) == ([row("one", "c")], [gone("one")])
