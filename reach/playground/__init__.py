"""A playground for routing policies: tasks against modelled instances, with the real core on a clock that jumps."""
