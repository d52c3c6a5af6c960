"""A2A and the contract: states, parts and errors of each in terms of the other, for those who call us as an A2A agent
and for A2A agents that we call.

Pure, but it needs the types of `a2a-sdk`, which is an extra: nothing that every server loads may import from here.
"""
