"""Configuration: a YAML file, the environment, and options of the command line, checked as a whole.

    config = load(Path("reach.yaml"), os.environ, {"server.port": 9000})

What comes later in that list wins. Unknown keys are errors that name the line and the nearest known key. Nothing else
in this package reads files or the environment for settings.

`python -m reach.config` writes the page about all fields, docs/configuration.md.
"""

from reach.config.clustering import Cluster
from reach.config.doors import A2a, Grpc, Http
from reach.config.loading import ConfigError, load
from reach.config.outgoing import AgentAuth, Agents, Wake, WakeHook, Webhooks, WebhookSecret
from reach.config.page import reference
from reach.config.sections import (
    ClientIdentity,
    Config,
    Health,
    Heartbeat,
    Matcher,
    Probe,
    Registry,
    Results,
    Router,
    Server,
    Session,
    Storage,
    Telemetry,
)
from reach.config.tokens import Jwt, JwtIssuer

__all__ = [
    "A2a",
    "AgentAuth",
    "Agents",
    "ClientIdentity",
    "Cluster",
    "Config",
    "ConfigError",
    "Grpc",
    "Health",
    "Heartbeat",
    "Http",
    "Jwt",
    "JwtIssuer",
    "Matcher",
    "Probe",
    "Registry",
    "Results",
    "Router",
    "Server",
    "Session",
    "Storage",
    "Telemetry",
    "Wake",
    "WakeHook",
    "WebhookSecret",
    "Webhooks",
    "load",
    "reference",
]
