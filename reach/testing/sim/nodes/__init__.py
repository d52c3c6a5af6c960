"""Histories of several nodes: the real core, runtime, cluster and links between nodes, on one thread, in virtual time.

What is modelled is what they stand on: the network, etcd, the journal, callers and agents. See CONTRIBUTING.md.
"""
