"""What all commands share: which server, as whom, and whether a program reads the answer."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from reach.cli.connection import Connection
    from reach.sdk.channel import TlsLike
    from reach.sdk.client import Client

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_ADDRESS: Final = "127.0.0.1:8900"
CONNECT_TIMEOUT_S: Final = 5.0
"""How long a command tries to reach a server."""


@dataclass(slots=True)
class Settings:
    """Options of every command; given before or behind its name."""

    addr: str = ""
    api_key: str | None = None
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    json: bool = False

    @property
    def address(self) -> str:
        """`host:port` of the server."""
        return checked_address(self.addr or os.environ.get("AGENT_REACH_ADDR", "")) or DEFAULT_ADDRESS

    def tls_files(self) -> TlsLike:
        """What the SDK wants to know of TLS."""
        if not (self.tls or self.tls_ca or self.tls_cert or self.tls_key):
            return None
        from reach.sdk.channel import Tls

        if bool(self.tls_cert) != bool(self.tls_key):
            raise click.UsageError("--tls-cert and --tls-key belong together.")
        return Tls(self.tls_ca, self.tls_cert, self.tls_key)

    def client(self) -> Client:
        """A caller; its calls fail after a few seconds if the server was never reached."""
        from reach.sdk.client import Client

        return Client(
            self.address,
            api_key=self.api_key,
            tls=self.tls_files(),
            source="reach-cli",
            connect_timeout=CONNECT_TIMEOUT_S,
        )

    def connect(self) -> Connection:
        """A connection for single calls."""
        from reach.cli.connection import Connection
        from reach.sdk.channel import Target

        return Connection(Target(self.address, self.api_key, self.tls_files()))


def checked_address(text: str) -> str:
    """`host:port`, or several with commas between; the port may be missing."""
    return ",".join(_checked(part) for one in text.split(",") if (part := one.strip()))


def _checked(text: str) -> str:
    if "://" in text or "/" in text or re.search(r"\s", text):
        raise click.UsageError(f"The address of a server is host:port, without http:// or a path, not {text!r}.")
    host, separator, port = text.rpartition(":")
    if not separator or text.endswith("]") or (":" in host and not host.endswith("]")):
        # No port: a name, an IPv4 address, an IPv6 address with or without its brackets.
        return f"[{text}]:8900" if text.count(":") > 1 and not text.endswith("]") else f"{text}:8900"
    if not port.isdecimal() or not 1 <= int(port) <= 65_535:
        raise click.UsageError(f"The port of the server is 1 to 65535, not {port!r}.")
    return text


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is None or value is False or parameter.name is None:
        return
    setattr(settings_of(context), parameter.name, value)


def settings_of(context: click.Context) -> Settings:
    """The settings of this run."""
    root = context.find_root()
    if not isinstance(root.obj, Settings):
        root.obj = Settings()
    return root.obj


def _option(*names: str, **attributes: Any) -> Callable[[F], F]:
    return click.option(*names, expose_value=False, callback=_keep, **attributes)


_FILE: Final = click.Path(exists=True, dir_okay=False, readable=True)


def json_option(command: F) -> F:
    """`--json`."""
    return _option("--json", "json", is_flag=True, help="Print JSON, for programs.")(command)


def server_options(command: F) -> F:
    """Which server, as whom, and `--json`."""
    for option in (
        _option("--tls-key", type=_FILE, help="Private key of --tls-cert (PEM)."),
        _option("--tls-cert", type=_FILE, help="Our certificate, for servers that ask for one (PEM)."),
        _option("--tls-ca", type=_FILE, help="Speak TLS and trust these authorities (PEM)."),
        _option("--tls", is_flag=True, help="Speak TLS and trust the authorities of the system."),
        _option(
            "--api-key", metavar="KEY", help="[env: AGENT_REACH_API_KEY] Prefer the environment: others see arguments."
        ),
        _option(
            "--addr",
            metavar="HOST:PORT",
            help=f"[env: AGENT_REACH_ADDR] The server, or nodes: a:1,b:2; else {DEFAULT_ADDRESS}.",
        ),
    ):
        command = option(command)
    return json_option(command)
