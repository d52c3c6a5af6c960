"""Registry, membership and election, for one node and for many."""
