"""The configuration as data: sections, fields, defaults, ranges, and what each field means.

The text under a field says what it does and its unit, then what a value that is too small or too large does;
`docs/configuration.md` is made from it. Times are seconds and sizes bytes, unless the name says otherwise.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from reach.config.clustering import Cluster
from reach.config.doors import A2a, Grpc, Http
from reach.config.fields import Calls, Name, PolicyName, Port, Scope, Section, Text
from reach.config.outgoing import Agents, Wake, Webhooks
from reach.config.tokens import Jwt


class ClientIdentity(Section, frozen=True):
    """Who a client certificate stands for."""

    identity: Annotated[str, Meta(min_length=1, max_length=512)]
    tenant: Name
    app_id: Name
    scopes: Annotated[frozenset[Scope], Meta(min_length=1)]
    agent_types: Annotated[frozenset[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=100)] = (
        frozenset()
    )


class Server(Section, frozen=True):
    """Listening, who may call, limits, and the end."""

    host: Annotated[str, Meta(min_length=1, max_length=255)] = "127.0.0.1"
    """Address that gRPC and HTTP listen on. `0.0.0.0` or `::` is every interface. Anything beyond loopback needs
    authentication and TLS, or `insecure`."""
    port: Port = 8900
    """Port of gRPC. 0 takes a free one, for tests."""
    admin_port: Port = 8800
    """Port of HTTP: the JSON door, `/healthz`, `/readyz`, `/metrics`. 0 takes a free one, for tests."""
    insecure: bool = False
    """Allows what is otherwise refused beyond loopback: no authentication, and plaintext. For networks in which
    everybody is trusted."""
    auth: Literal["none", "keys"] = "none"
    """`none`: every caller is the application `local` of the tenant `default` and may do everything. `keys`: an API
    key, a token (`jwt.issuers`), or a client certificate named in `client_identities`, is needed for all but health."""
    tls_cert: Text = ""
    """File with the server's certificate chain (PEM). With `tls_key` it turns TLS on, for gRPC and HTTP. It, `tls_key`
    and `tls_client_ca` are read again when they change; what is wrong is told of in the log, and the old one stays."""
    tls_key: Text = ""
    """File with the private key of `tls_cert` (PEM)."""
    tls_client_ca: Text = ""
    """File with the authorities that sign client certificates (PEM)."""
    client_cert_required: bool = False
    """Clients without a certificate of `tls_client_ca` are refused: by gRPC in the handshake, by HTTP with 401 in all
    that is not health. Must be set together with it: gRPC for Python can ask for certificates only by requiring
    them."""
    client_identities: Annotated[list[ClientIdentity], Meta(max_length=1000)] = field(default_factory=list)
    """Who client certificates stand for: a list of `identity` (a subject alternative name or the common name, compared
    exactly), `tenant`, `app_id`, `scopes`, and `agent_types` (the only types of agents that they may be and may give
    tasks to; without it: all). Needs `auth: keys` and `tls_client_ca`."""
    max_streams: Calls = 20_000
    """Calls that stay open at the same time: attached agents, readers, watchers. Too small: agents and readers are
    refused (TOO_MANY_STREAMS). Too large: memory, about 20 KiB each."""
    max_streams_per_tenant: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Of them, how many one tenant may hold, over gRPC and HTTP together; 0: all. Too small: its fleet is refused
    (TOO_MANY_STREAMS). Too large: one tenant that opens ever more of them leaves none for others."""
    max_submits: Calls = 10_000
    """Short calls of callers at the same time. Too small: bursts are refused and come again. Too large: an overload
    waits inside the server instead of with its callers."""
    max_control: Calls = 20_000
    """Beats, reports of agents, health and operations at the same time. Too small: living agents look dead. Too large:
    nothing, short of memory."""
    payload_limit: Annotated[int, Meta(ge=65_536, le=67_108_864)] = 4_194_304
    """Largest payload of a task or result, in bytes. Too small: work is refused (PAYLOAD_TOO_LARGE). Too large: one
    message delays all others on its connection; memory."""
    drain_seconds: Annotated[float, Meta(ge=1, le=3600)] = 30.0
    """How long a server that was asked to stop (SIGTERM) lets running work finish. Too small: work is handed back and
    runs again elsewhere. Too large: deployments wait; keep it under the time after which your orchestrator kills."""
    advertise: Annotated[str, Meta(max_length=300)] = ""
    """`host:port` under which others reach this server, where that differs from `host` and `port`. Empty: those.
    Nodes of a cluster call each other there, so they need it where `host` is every interface."""
    node_id: Annotated[str, Meta(pattern=r"^(?:[A-Za-z0-9._-]{1,64})?\Z")] = ""
    """Name of this node in answers, logs and traces. Empty: made of host name and port."""


class Storage(Section, frozen=True):
    """Where tasks and keys are kept."""

    type: Literal["sqlite", "memory", "postgres"] = "sqlite"
    """`sqlite`: accepted tasks survive a crash. `memory`: everything but API keys is lost with the process; for
    tests. `postgres`: in the database at `url`, which the nodes of a cluster share."""
    url: Text = ""
    """Where PostgreSQL is (15 or newer): `postgres://user:password@host:port/database`. The database must be there;
    tables are made. A password is better kept in `password_file` or PGPASSFILE than here."""
    password_file: Text = ""
    """File with the password of the user in `url`: a mounted secret. Read at the start."""
    path: Text = ""
    """Data folder: the journal and the API keys. It is made with mode 0700 and used by one server at a time. Empty:
    `agentreach` in `$XDG_DATA_HOME`, that is `~/.local/share/agentreach`: the same one from wherever you start. Put it
    on a local disk: SQLite is not safe on network file systems."""


class Router(Section, frozen=True):
    """Queues, the choice of an instance, and retries."""

    policy: PolicyName = "balanced"
    """How instances are chosen where neither the task nor its route nor its pool names a policy: `balanced`,
    `reachability`, `capability`, `adaptive`, `content`, `round_robin`, `least_connections`, `consistent_hash`,
    `power_of_two`, or one of `policies`."""
    policies: Annotated[dict[PolicyName, dict[PolicyName, float]], Meta(max_length=64)] = field(default_factory=dict)
    """Own policies: by name, weights by signal, such as `{careful: {success_rate: 3, capacity: 1}}`. Signals are
    `availability`, `latency`, `load`, `capacity`, `success_rate`, `weight`, `reach`, `match`, `region` and `underload`;
    weights are brought to a sum of 1. `near_tie` (0.02 if not given) is how much less a score may be than the best and
    still be as good: among these, chance decides. They, `policy` and `pool_policies` are read anew when the file
    changes, and on SIGHUP; one that is wrong is told of in the log, and the old ones stay. Too small: bursts follow
    one favourite. Too large: the best is not told from the good."""
    pool_policies: Annotated[dict[PolicyName, PolicyName], Meta(max_length=1000)] = field(default_factory=dict)
    """The policy of single pools: by agent type, the name of a policy."""
    canary_share: Annotated[float, Meta(ge=0, le=1)] = 0.05
    """Share of a pool's new sessions and tasks that goes to a version that grew, until 50 of them show that it is no
    worse. Too small: the trial takes long. Too large: a bad version meets many. 1: no trials."""
    max_retry: Annotated[int, Meta(ge=0, le=20)] = 3
    """Retries after the first try, where a task names no retry policy. Too small: passing faults become dead letters.
    Too large: a task that breaks its agents breaks many."""
    retry_on: Annotated[
        str, Meta(pattern=r"^(?:(?:RESOURCE_EXHAUSTED|UNAVAILABLE|TIMEOUT|INTERNAL)(?:, ?|\Z))*\Z", max_length=100)
    ] = "RESOURCE_EXHAUSTED, UNAVAILABLE, TIMEOUT"
    """Classes of failures, with commas, that are tried again where the task does not say. Without RESOURCE_EXHAUSTED,
    callers are told at once that agents are busy. Too small: passing faults reach callers. Too large: with INTERNAL,
    what breaks its agents breaks many. A move to another instance after one is lost is no retry. Routes that name a
    policy have its own classes."""
    full_jitter: bool = False
    """Spread the wait before a retry over 0 … its length, instead of ± 20 %: for many callers that fail together."""
    dead_letter: bool = True
    """Keep what was given up after the last try, with payload and reasons, to be looked at and sent again. Off: it ends
    as FAILED."""
    queue_limit: Annotated[int, Meta(ge=1, le=10_000_000)] = 200_000
    """Tasks that wait in one pool. Rule of thumb: peak rate times mean task time times 2. Too small: bursts are refused
    (QUEUE_FULL). Too large: callers wait for answers that come too late; memory, about 1 KiB each and its payload."""
    queue_bytes: Annotated[int, Meta(ge=1_048_576, le=1_099_511_627_776)] = 1_073_741_824
    """Bytes of payload that wait in one pool. Too small: bursts are refused. Too large: memory."""
    backlog_alert: Annotated[int, Meta(ge=1, le=10_000_000)] = 1_000
    """Tasks waiting in one pool at which there is an alert (`backlog`), once, until half as many wait. Too small:
    noise. Too large: told when callers have noticed."""
    fairness_weights: Annotated[
        dict[Annotated[str, Meta(max_length=513)], Annotated[float, Meta(ge=0.001, le=1000)]], Meta(max_length=10_000)
    ] = field(default_factory=dict)
    """Shares of the turns where tasks wait: by tenant, or by `tenant/fairness_key` among the keys of a tenant; 1 for
    all that are not named. A tenant of weight 2 gets two turns for each one of the others. Too small: its tasks come
    late. Too large: those of others do."""
    overcommit: Annotated[float, Meta(ge=1, le=10)] = 1.5
    """An instance holds at most this times its `max_concurrency`, and more than `max_concurrency` only when no other
    has a free slot. 1 is a hard limit. Too large: tasks wait at a busy agent although another one becomes free."""
    input_wait: Annotated[float, Meta(ge=1, le=2_592_000)] = 3_600.0
    """Seconds that a task may wait for the answer to a question of its agent, and the most that an agent may ask for;
    then it fails (INPUT_EXPIRED). Its other time limits stand still meanwhile. Too small: people find their task gone.
    Too large: questions that nobody will answer, and their agents' memory, stay for long."""
    vocabulary_file: Text = ""
    """File with the skills: canonical names, aliases, exclusions (YAML; docs/routing.md). Read anew when it changes and
    on SIGHUP; one that is wrong is told of in the log, and the old one stays. Empty: every name is a skill of its
    own."""
    routes_file: Text = ""
    """File with the routes: what intents mean (YAML; docs/routing.md). Read anew like `vocabulary_file`. Empty: tasks
    that name an intent are refused (NO_ROUTE)."""
    silence: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    """Seconds without progress after which an attempt is given up, where a task does not say. 0: never, so that only
    `start_to_close` ends it. Too small: agents that think for long are interrupted. Too large: work that hangs is found
    late."""


class Matcher(Section, frozen=True):
    """Tasks that are addressed by text. Words are always compared; an embedder compares meanings as well."""

    embedder: Literal["none", "local", "endpoint"] = "none"
    """`local`: a small model in this process; needs `pip install 'agentreach[match]'`. `endpoint`: what `url` names.
    Both decide only if they answer within `wait_ms`; otherwise words do."""
    url: Text = ""
    """Endpoint that speaks OpenAI's `POST {url}/embeddings`, such as `http://127.0.0.1:11434/v1`. It sees the texts."""
    model: Annotated[str, Meta(max_length=256)] = ""
    """Its name for the model."""
    key_file: Text = ""
    """File with the key that is sent to it. Empty: none is sent."""
    threshold: Annotated[float, Meta(ge=0.05, le=1)] = 0.6
    """The least match of words, 0 to 1, of an agent that may take a text. Too small: texts go to agents that have
    little to do with them. Too large: texts are refused (NO_TEXT_MATCH)."""
    embedding_threshold: Annotated[float, Meta(ge=0.05, le=1)] = 0.6
    """The least cosine of an agent that may take a text. What is near differs from model to model: try yours. Too
    small: texts go to agents that have little to do with them. Too large: only words decide."""
    wait_ms: Annotated[int, Meta(ge=1, le=1000)] = 20
    """How long a task waits for the embedder, in milliseconds. Too small: words decide more often than meanings. Too
    large: a slow endpoint is felt in every new text."""
    classifier: Literal["none", "endpoint"] = "none"
    """`endpoint`: a language model, which `classifier_url` names, is asked what a text that still fits nobody asks for.
    Only the name of a capability that the caller may use counts as an answer."""
    classifier_url: Text = ""
    """Endpoint that speaks OpenAI's `POST {url}/chat/completions`, such as `http://127.0.0.1:11434/v1`. It sees the
    texts, and what agents say of their capabilities."""
    classifier_model: Annotated[str, Meta(max_length=256)] = ""
    """Its name for the model."""
    classifier_key_file: Text = ""
    """File with the key that is sent to it. Empty: none is sent."""
    classifier_wait_ms: Annotated[int, Meta(ge=1, le=30_000)] = 2_000
    """How long a task waits for the model, in milliseconds. Too small: it answers too late for the first task with a
    text, and in time for the next one. Too large: texts that nobody can take are refused late."""
    generic_type: Annotated[str, Meta(max_length=256)] = ""
    """Type of agents that take texts which fit nobody. Empty: such texts are refused (NO_TEXT_MATCH)."""


class Heartbeat(Section, frozen=True):
    """Signs of life."""

    interval: Annotated[float, Meta(ge=1, le=60)] = 5.0
    """Seconds between the beats of an agent that does not ask for another interval; three missed ones make it
    UNHEALTHY. Too small: load, and agents that are merely slow are suspected. Too large: frozen agents keep their tasks
    for long."""


class Probe(Section, frozen=True):
    """Active checks: pings on the streams of agents that answer them, and calls to agents that are dialled."""

    interval: Annotated[float, Meta(ge=0.1, le=3600)] = 5.0
    """Seconds between probes of a healthy agent. Too small: load. Too large: a dead agent is noticed late."""
    retry_interval: Annotated[float, Meta(ge=0.1, le=3600)] = 1.0
    """Seconds until the next probe after one that failed. Too small: one hiccup counts as several failures. Too large:
    slow to decide."""
    fail_threshold: Annotated[int, Meta(ge=1, le=10)] = 3
    """Failed probes in a row after which an agent is UNREACHABLE, and UNHEALTHY if nothing else speaks for it. Too
    small: single losses take agents out. Too large: tasks are sent to dead agents."""
    unreachable_interval: Annotated[float, Meta(ge=0.1, le=3600)] = 30.0
    """Seconds between probes of an UNREACHABLE agent. Too small: load. Too large: one that is back is noticed late."""
    timeout: Annotated[float, Meta(ge=0.05, le=60)] = 1.0
    """Seconds that an agent which is dialled may take to answer a probe or a check. Too small: slow networks look dead.
    Too large: frozen agents are noticed late, and hold a place among `at_once`."""
    check_interval: Annotated[float, Meta(ge=0.5, le=3600)] = 15.0
    """Seconds between application checks of agents that are dialled (Check: is it ready, what does it run). Too small:
    load. Too large: an agent that is up but not ready gets work meanwhile."""
    at_once: Annotated[int, Meta(ge=1, le=1000)] = 8
    """Probes and checks of dialled agents under way at the same time; one that finds no place is skipped. Too small:
    many frozen agents delay the probes of the others. Too large: bursts of load."""


class Health(Section, frozen=True):
    """When what is held against an agent counts."""

    missed_beats: Annotated[int, Meta(ge=2, le=10)] = 3
    """Beats missed in a row after which an agent is UNHEALTHY and gets no new work, if nothing else speaks for it. Too
    small: a short pause takes agents out. Too large: tasks are sent to dead agents."""
    offline: Annotated[float, Meta(ge=10, le=86_400)] = 300.0
    """Seconds of silence after which an agent is OFFLINE, unless it may be silent for longer (it beats slowly, or is
    BUSY); also how long one that was never ready may be silent. Too small: slow starts are given up. Too large: dead
    agents are listed for long."""
    ready_beats: Annotated[int, Meta(ge=1, le=100)] = 2
    """Beats after which an agent that never says whether it is ready is taken for ready. Too small: work before it is
    up. Too large: it waits for nothing."""
    unready: Annotated[float, Meta(ge=1, le=86_400)] = 300.0
    """Seconds without being ready after which there is an alert. Too small: noise. Too large: told late."""
    slow_start: Annotated[float, Meta(ge=0, le=3600)] = 30.0
    """Seconds in which the share of an agent that has become ready grows to what is its due; 0: at once. Too small: a
    cold agent is flooded. Too large: new agents help late."""
    stall_factor: Annotated[float, Meta(ge=1, le=100)] = 2.0
    """An agent that works, but completes nothing and reports no progress for this many usual task times (at least
    `stall_floor`), is STALLED and gets no new work. Too small: slow tasks take agents out. Too large: stuck ones get
    more."""
    stall_floor: Annotated[float, Meta(ge=0.1, le=3600)] = 1.0
    """Seconds that a task may take in any case before its agent counts as STALLED, however quick its tasks usually are.
    Too small: a short pause takes agents with quick tasks out. Too large: stuck ones get more."""
    self_failures: Annotated[int, Meta(ge=1, le=1000)] = 3
    """Failures in a row, by its own report, after which an agent gets no new work until it reports fewer. Too small:
    one bad task takes it out. Too large: tasks are sent to broken agents."""
    panic_share: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """If suspicion (missed beats, failed probes, STALLED, open circuits) would exclude a larger share of a pool than
    this, it is ignored. Too small: suspicion never counts. Too large: a false alarm empties pools."""
    reach_heartbeat: Annotated[float, Meta(ge=0, le=100)] = 50.0
    """Part of the age of the last beat in the ReachScore; the three parts must come to 100. Too small: silence hardly
    shows. Too large: nothing else does."""
    reach_rtt: Annotated[float, Meta(ge=0, le=100)] = 30.0
    """Part of the round trip of probes in the ReachScore. Too small: slow agents hardly show. Too large: distance
    counts more than life."""
    reach_loss: Annotated[float, Meta(ge=0, le=100)] = 20.0
    """Part of lost probes in the ReachScore. Too small: bad links hardly show. Too large: one loss outweighs the
    rest."""
    reach_fresh: Annotated[float, Meta(ge=0.1, le=3600)] = 10.0
    """Age of the last beat, in seconds, up to which it has its full part; none at three times that. For agents that
    beat less often, their interval counts instead. Too small: scores tremble between beats. Too
    large: silence shows late."""
    reach_rtt_good: Annotated[float, Meta(ge=0, le=60)] = 0.02
    """Round trip, in seconds, up to which it has its full part. Too small: chance decides. Too large: no difference is
    seen."""
    reach_rtt_bad: Annotated[float, Meta(ge=0.001, le=600)] = 0.5
    """Round trip, in seconds, from which on it has no part; longer than `reach_rtt_good`. Too small: a busy agent
    scores as a dead one. Too large: slow ones are not told apart."""
    reach_loss_bad: Annotated[float, Meta(ge=0.01, le=1)] = 0.3
    """Share of lost probes from which on they have no part. Too small: one loss is as bad as all. Too large: losses
    hardly show."""


class Session(Section, frozen=True):
    """Conversations, which are pinned to an instance."""

    ttl: Annotated[float, Meta(ge=1, le=2_592_000)] = 720.0
    """Seconds without activity after which a conversation is forgotten. Too small: its next turn meets an agent that
    knows nothing. Too large: pins hold load where it is; memory."""
    pin_wait: Annotated[float, Meta(ge=0, le=3600)] = 5.0
    """Seconds that a task waits for the instance of its conversation while that is merely full; then the conversation
    moves to another one. Too small: conversations move in every burst. Too large: tasks wait though others are free. 0:
    it moves at once."""
    limit: Annotated[int, Meta(ge=1, le=10_000_000)] = 100_000
    """Conversations that are known at a time; those that were used longest ago go first. Too small: living ones lose
    their context. Too large: memory."""
    limit_bytes: Annotated[int, Meta(ge=1_048_576, le=1_099_511_627_776)] = 268_435_456
    """What their contexts take in all, in bytes. Too small: living conversations lose their context. Too large: memory,
    which it also takes to load them at the start."""
    context_bytes: Annotated[int, Meta(ge=16_384, le=262_144)] = 65_536
    """What the turns of one conversation take, in bytes; what is more is shortened, the oldest first. They come with
    each task. Too small: agents see cut texts. Too large: each task carries more."""
    summariser: Literal["extractive", "endpoint"] = "extractive"
    """What makes old turns short, ten at a time. `extractive`: their most telling sentences are kept as they are.
    `endpoint`: the model that `url` names writes a summary; while it fails, extracts take its place."""
    url: Text = ""
    """Endpoint that speaks OpenAI's `POST {url}/chat/completions`, such as `http://127.0.0.1:11434/v1`. It sees what
    was said."""
    model: Annotated[str, Meta(max_length=256)] = ""
    """Its name for the model."""
    key_file: Text = ""
    """File with the key that is sent to it. Empty: none is sent."""


class Results(Section, frozen=True):
    """What is kept of tasks that ended."""

    keep_hours: Annotated[float, Meta(ge=0.01, le=8760)] = 24.0
    """Hours that a task and its result are kept, two minutes at least; for as long its task_id is known and a repeat is
    answered. Too small: callers that come back late find nothing, and late repeats run again. Too large: disk."""
    keep_bytes: Annotated[int, Meta(ge=1_048_576, le=1 << 50)] = 21_474_836_480
    """Space of the store in use (20 GiB) beyond which the oldest results go before their time, then the oldest dead
    letters. What is open, or ended in the last two minutes, is never removed. The file does not shrink: what follows
    uses the space. Too small: results are gone before they are fetched. Too large: the disk is full first, and new work
    is refused (STORE_FULL)."""
    dead_letter_hours: Annotated[float, Meta(ge=0.01, le=87_600)] = 168.0
    """Hours that dead letters, and webhooks that were given up, are kept. Too small: nobody has looked at them yet. Too
    large: disk."""
    dead_letters: Annotated[int, Meta(ge=1, le=10_000_000)] = 100_000
    """How many dead letters are kept; beyond it the oldest go. Too small: a bad night pushes out what was not looked at
    yet. Too large: disk."""


class Registry(Section, frozen=True):
    """Which agents and skills are known."""

    strict: bool = False
    """Refuse tasks that nobody registered could take, and say what is missing (NO_CAPABLE_AGENT, NO_TAGGED_AGENT,
    NO_MATCHING_AGENT), instead of letting them wait for somebody who can. With a vocabulary also refuse agents, tasks
    and routes with a skill that it does not have (UNKNOWN_SKILL), instead of a warning."""


class Telemetry(Section, frozen=True):
    """Logs, metrics and traces."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important lines that are written."""
    log_format: Literal["json", "text"] = "json"
    """`json`: one object a line. `text`: for people."""
    metrics: bool = True
    """Serve `/metrics` on the HTTP port."""
    metrics_interval: Annotated[float, Meta(ge=1, le=3600)] = 15.0
    """Seconds between pushes of metrics to the collector. Too small: load. Too large: graphs are coarse."""
    otlp_endpoint: Annotated[str, Meta(max_length=1024)] = ""
    """Collector that gets traces and metrics by OTLP over gRPC: `http://host:4317` in clear, `https://host:4317`.
    Empty: nothing is sent."""
    sample_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.01
    """Share of the traces beginning here that are recorded; callers that bring a trace decide themselves. Too small:
    few to look at. Too large: about 0.1 ms for each task."""


class Config(Section, frozen=True):
    """Everything, checked."""

    server: Server = Server()
    grpc: Grpc = Grpc()
    http: Http = Http()
    a2a: A2a = A2a()
    jwt: Jwt = Jwt()
    storage: Storage = Storage()
    cluster: Cluster = Cluster()
    router: Router = Router()
    matcher: Matcher = Matcher()
    heartbeat: Heartbeat = Heartbeat()
    probe: Probe = Probe()
    health: Health = Health()
    wake: Wake = Wake()
    agents: Agents = Agents()
    webhooks: Webhooks = Webhooks()
    session: Session = Session()
    results: Results = Results()
    registry: Registry = Registry()
    telemetry: Telemetry = Telemetry()
