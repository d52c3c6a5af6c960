"""The section about nodes that work as one."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from reach.config.fields import Name, Section, Text


class Cluster(Section, frozen=True):
    """Several nodes that work as one. Without `endpoints` a node is alone."""

    endpoints: Annotated[list[Annotated[str, Meta(min_length=3, max_length=300)]], Meta(max_length=16)] = field(
        default_factory=list
    )
    """Members of etcd, `host:port` each. All nodes of a cluster name the same etcd; it holds who is there, who should
    own what, and the registrations of agents. Needs `storage.type: postgres` and `secret_file`."""
    name: Name = "main"
    """Name of the cluster. Several may share one etcd, but not one database."""
    secret_file: Text = ""
    """File with what nodes show each other, at least 16 bytes, the same on all nodes: `openssl rand -hex 32`."""
    peer_ca: Text = ""
    """File with the authority that signed the certificates of the nodes (PEM), where they use TLS (`server.tls_cert`).
    Empty: they all show the same one, which signed itself."""
    weight: Annotated[int, Meta(ge=0, le=100)] = 1
    """Share of the work that this node owns, relative to the others. 0: a door that takes calls and owns nothing. Too
    small: this node is idle while others work. Too large: the other way round."""
    operators: Annotated[list[Name], Meta(max_length=256)] = field(default_factory=lambda: ["default"])
    """Tenants whose operators may drain nodes and have shards placed (`reach cluster`): that touches the work of all
    tenants. Looking is for every operator and reader."""
    lease: Annotated[int, Meta(ge=2, le=60)] = 2
    """Seconds after which a node that says nothing to etcd is taken for dead. Too small: on a machine that is often
    overloaded nodes lose what they own for nothing. Too large: what a dead node owned waits for that long."""
    user: Annotated[str, Meta(max_length=256)] = ""
    """User of etcd, where it asks for one."""
    password_file: Text = ""
    """File with the password of `user`."""
    ca: Text = ""
    """File with the authority that signed the certificates of etcd (PEM). It turns TLS on."""
    cert: Text = ""
    """File with the certificate that this node shows etcd (PEM), where it asks for one."""
    key: Text = ""
    """File with the private key of `cert` (PEM)."""
