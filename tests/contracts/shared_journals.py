"""What is loaded of a journal that several nodes share."""

from reach.store.base import Loaded, Place, some


def by_parts(node, shards, limit):
    """What is loaded some at a time, and in how many steps."""
    found, place, steps = some(), Place(), 0
    while place is not None:
        loaded, place = node.load_some(shards, place, limit)
        assert max(map(len, (loaded.tasks, loaded.agents, loaded.pins, loaded.contexts))) <= limit
        found = Loaded(*(one + other for one, other in zip(found, loaded, strict=True)))
        steps += 1
    return found, steps
