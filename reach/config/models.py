"""From the configuration to the models that say what a text means."""

from __future__ import annotations

from typing import Final

from reach.config.sections import Config
from reach.runtime.chat import ChatEndpoint
from reach.runtime.classifier import Classifier
from reach.runtime.embedders import Embedder, EndpointEmbedder, LocalEmbedder
from reach.runtime.host import Host
from reach.runtime.matcher import Matcher
from reach.runtime.outgoing import secret

CLASSIFIER_SECONDS: Final = 8.0
"""How long a model's answer is waited for beyond the task that asked: it is there for the next one."""


def matcher_of(config: Config, host: Host) -> Matcher | None:
    """What compares meanings; None: only words are compared. Raises InvalidRequest: a key cannot be read."""
    settings = config.matcher
    if settings.embedder == "none":
        return None
    embedder: Embedder = LocalEmbedder()
    if settings.embedder == "endpoint":
        embedder = EndpointEmbedder(settings.url, settings.model, secret(settings.key_file))
    return Matcher(host.directory, embedder, host.clock, settings.embedding_threshold, settings.wait_ms)


def classifier_of(config: Config, host: Host) -> Classifier | None:
    """What is asked about texts that fit nobody; None: nothing is. Raises InvalidRequest: a key cannot be read."""
    settings = config.matcher
    if settings.classifier == "none":
        return None
    key = secret(settings.classifier_key_file)
    wait_ms = settings.classifier_wait_ms
    model = ChatEndpoint(settings.classifier_url, settings.classifier_model, key, wait_ms / 1_000 + CLASSIFIER_SECONDS)
    return Classifier(host.directory, model, host.clock, wait_ms)
