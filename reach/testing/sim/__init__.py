"""A whole node, its agents, its callers and all that can go wrong between them, in one thread and in virtual time.

One seed is one history: `run_seed(7)` does the same each time, on each machine. Real is what decides and keeps: the
core, the shards, the committer, the door, the loading, the codec and the memory journal. Simulated is the world around
it: time, threads, streams, the processes of agents and callers, and faults. While faults rage the checker watches that
nothing wrong happens; then everything is healed, and all that was accepted has to end.

    python -m reach.testing.sim --seeds 1000
"""
