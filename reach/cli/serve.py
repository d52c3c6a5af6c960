"""`reach serve`, `reach config`, `reach version`: the server itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

import click

from reach.cli.exits import Exit
from reach.cli.settings import server_options, settings_of
from reach.cli.terminal import write, write_facts, write_json
from reach.collector import made_to_stay

_OVERRIDES: Final = {
    "host": "server.host",
    "port": "server.port",
    "admin_port": "server.admin_port",
    "auth": "server.auth",
    "insecure": "server.insecure",
    "tls_cert": "server.tls_cert",
    "tls_key": "server.tls_key",
    "tls_client_ca": "server.tls_client_ca",
    "data": "storage.path",
    "cluster_secret": "cluster.secret_file",
    "advertise": "server.advertise",
    "node_id": "server.node_id",
    "log_level": "telemetry.log_level",
    "log_format": "telemetry.log_format",
}
"""Options and the fields of the configuration that they override."""

_FILE: Final = click.Path(dir_okay=False)


@click.command()
@click.option("--config", "file", type=_FILE, metavar="FILE", help="Configuration (YAML); `reach config reference`.")
@click.option("--host", metavar="ADDRESS", help="Address to listen on (default: 127.0.0.1).")
@click.option("--port", type=int, help="Port of gRPC (default: 8900; 0: a free one).")
@click.option("--admin-port", type=int, help="Port of HTTP: JSON, health, metrics (default: 8800).")
@click.option("--data", metavar="DIR", help="Data folder (default: ~/.local/share/agentreach).")
@click.option("--memory", is_flag=True, help="Keep tasks in memory only: lost with the process.")
@click.option("--journal", metavar="URL", help="sqlite, memory, or postgres://user@host/database (default: sqlite).")
@click.option("--cluster", metavar="URL", help="etcd://HOST:PORT,HOST:PORT[/NAME]: join the nodes of this cluster.")
@click.option("--cluster-secret", metavar="FILE", help="What the nodes of the cluster show each other.")
@click.option("--advertise", metavar="HOST:PORT", help="Where other nodes reach this one (default: host and port).")
@click.option("--node-id", metavar="NAME", help="Name of this node (default: host name and port).")
@click.option("--auth", type=click.Choice(["none", "keys"]), help="Who may call (default: none, on loopback only).")
@click.option("--insecure", is_flag=True, help="Allow no authentication, and plaintext, beyond loopback.")
@click.option("--tls-cert", metavar="FILE", help="Certificate chain (PEM); turns TLS on.")
@click.option("--tls-key", metavar="FILE", help="Private key of --tls-cert (PEM).")
@click.option("--tls-client-ca", metavar="FILE", help="Require client certificates of these authorities (PEM).")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Default: info.")
@click.option("--log-format", type=click.Choice(["json", "text"]), help="Default: text on a terminal, else json.")
def serve(file: str | None, memory: bool, journal: str | None, cluster: str | None, **given: Any) -> int:
    """Run a server until Ctrl-C or SIGTERM. Options override AGENT_REACH_* variables, which override the file."""
    with made_to_stay():
        from reach.config import ConfigError, load

    given["insecure"] = given["insecure"] or None
    overrides = {field: given[option] for option, field in _OVERRIDES.items()}
    overrides |= _journal("memory" if memory else journal) | _cluster(cluster)
    if given["tls_client_ca"]:
        overrides["server.client_cert_required"] = True
    unsaid = given["log_format"] is None and file is None and "AGENT_REACH_TELEMETRY_LOG_FORMAT" not in os.environ
    if unsaid and sys.stderr.isatty():
        overrides["telemetry.log_format"] = "text"
    try:
        config = load(file, os.environ, overrides)
    except ConfigError as error:
        raise click.ClickException(_by_option(error.message)) from error
    with made_to_stay():
        from reach.node import run
    code = run(config, (Path(file), lambda: load(file, os.environ, overrides)) if file is not None else None)
    # What the node calls a failed start is a port or folder that is taken.
    return Exit.UNREACHABLE if code == 1 else code


def overrides_of(journal: str | None, cluster: str | None) -> dict[str, object]:
    """The fields that --journal and --cluster stand for."""
    return _journal(journal) | _cluster(cluster)


def _journal(url: str | None) -> dict[str, object]:
    """What --journal stands for."""
    if url is None:
        return {}
    if url in ("sqlite", "memory"):
        return {"storage.type": url}
    if url.startswith(("postgres://", "postgresql://")):
        return {"storage.type": "postgres", "storage.url": url}
    raise click.UsageError("--journal is sqlite, memory, or postgres://user@host:port/database.")


def _cluster(url: str | None) -> dict[str, object]:
    """What --cluster stands for."""
    if url is None:
        return {}
    kind, _, rest = url.partition("://")
    endpoints, _, name = rest.partition("/")
    if kind != "etcd" or not endpoints:
        raise click.UsageError("--cluster is etcd://HOST:PORT,HOST:PORT, and /NAME where it is not `main`.")
    return {"cluster.endpoints": endpoints.split(","), "cluster.name": name or None}


def _by_option(text: str) -> str:
    """The problems with the names of the options that were given instead of the fields they stand for."""
    for option, field in _OVERRIDES.items():
        text = text.replace(f"option: {field}: ", f"--{option.replace('_', '-')}: ")
    return text.replace("option: ", "")


@click.group("config")
def configuration() -> None:
    """Look at the configuration of a server."""


@configuration.command()
def reference() -> int:
    """Print what can be configured (Markdown)."""
    from reach.config import reference as page

    write(page())
    return Exit.OK


@configuration.command()
@click.argument("file", type=_FILE, required=False)
def check(file: str | None) -> int:
    """Check a file together with the environment, and print what `reach serve --config FILE` would use (YAML)."""
    import msgspec

    with made_to_stay():
        from reach.config import ConfigError, load

    try:
        config = load(file, os.environ)
    except ConfigError as error:
        raise click.ClickException(error.message) from error
    write(msgspec.yaml.encode(config).decode())
    return Exit.OK


@click.command()
@click.option("--server", "ask", is_flag=True, help="Also ask the server what it is and who we are for it.")
@server_options
@click.pass_context
def version(context: click.Context, ask: bool) -> int:
    """Print the version."""
    from reach.version import VERSION

    settings = settings_of(context)
    python = sys.version.split()[0]
    if not ask:
        if settings.json:
            write_json({"version": VERSION, "python": python})
        else:
            write(f"reach {VERSION} (Python {python})\n")
        return Exit.OK
    from agentreach.v1 import ops_pb2, ops_pb2_grpc
    from reach.cli.messages import plain, seconds
    from reach.cli.terminal import span

    with settings.connect() as server:
        stub = ops_pb2_grpc.OpsServiceStub(server.channel)
        info: ops_pb2.GetServerInfoResponse = server.ask(stub.GetServerInfo, ops_pb2.GetServerInfoRequest())
    if settings.json:
        write_json({"version": VERSION, "python": python, "server": plain(info)})
        return Exit.OK
    who = info.principal
    write_facts(
        [
            ("reach", f"{VERSION} (Python {python})"),
            ("server", f"{info.version} at {settings.address}, node {info.node_id}"),
            ("protocol", ", ".join(info.protocol_versions)),
            ("up for", span(seconds(info.uptime))),
            ("store", info.store),
            ("agents", str(info.agents)),
            ("open tasks", str(info.open_tasks)),
            ("we are", f"app {who.app_id} of tenant {who.tenant}: {', '.join(who.scopes)}"),
        ]
    )
    return Exit.OK
