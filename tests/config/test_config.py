"""Configuration: where it comes from, what is refused and how that is told."""

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach import config
from reach.config import AgentAuth, ClientIdentity, Config, ConfigError, load, reference
from reach.config.page import field_texts
from reach.config.relations import is_loopback
from reach.config.thresholds import thresholds_of
from reach.core.health import THRESHOLDS
from reach.errors import InvalidRequest, Reason

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
HOME = {"HOME": "/h"}


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "reach.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(path, environ=None, overrides=None) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as raised:
        load(path, HOME | (environ or {}), overrides)
    assert isinstance(raised.value, InvalidRequest)
    assert raised.value.reason is Reason.INVALID_FIELD
    assert raised.value.message.splitlines() == list(raised.value.problems)
    return raised.value.problems


# -- what it is -------------------------------------------------------------------------------------------------------


def test_cfg_1_without_anything_the_defaults_hold():
    loaded = load(None, HOME)
    assert (loaded.server.host, loaded.server.port, loaded.server.admin_port) == ("127.0.0.1", 8900, 8800)
    assert (loaded.probe.interval, loaded.probe.fail_threshold, loaded.probe.retry_interval) == (5.0, 3, 1.0)
    assert (loaded.router.max_retry, loaded.router.dead_letter, loaded.router.queue_limit) == (3, True, 200_000)
    assert loaded.server.payload_limit == 4 << 20
    assert loaded.storage.path == "/h/.local/share/agentreach"
    assert loaded.server.node_id.endswith("-8900")


def test_an_empty_file_and_empty_sections_change_nothing(tmp_path):
    defaults = load(None, HOME)
    for text in ("", "# only a comment\n", "server:\nstorage:\n", "{}", "---\n", "server: {}\n"):
        assert load(written(tmp_path, text), HOME) == defaults


def test_a_file_is_read(tmp_path):
    path = written(
        tmp_path,
        """\
server:
  port: 9000
  drain_seconds: 12.5
  node_id: node-1
storage:
  path: /data/reach
telemetry:
  log_format: text
registry:
  strict: yes
""",
    )
    loaded = load(path, HOME)
    assert (loaded.server.port, loaded.server.drain_seconds, loaded.server.node_id) == (9000, 12.5, "node-1")
    assert (loaded.storage.path, loaded.telemetry.log_format, loaded.registry.strict) == ("/data/reach", "text", True)


def test_options_beat_the_environment_which_beats_the_file(tmp_path):
    path = written(tmp_path, "server: {port: 1001, admin_port: 1002, drain_seconds: 3}")
    environ = {"AGENT_REACH_SERVER_PORT": "2001", "AGENT_REACH_SERVER_ADMIN_PORT": "2002"}
    loaded = load(path, HOME | environ, {"server.port": 3001, "server.host": None, "registry.strict": "true"})
    assert (loaded.server.port, loaded.server.admin_port, loaded.server.drain_seconds) == (3001, 2002, 3.0)
    assert loaded.registry.strict


@pytest.mark.parametrize(
    ("variable", "value", "section", "key", "expected"),
    [
        ("AGENT_REACH_SERVER_PORT", "9000", "server", "port", 9000),
        ("AGENT_REACH_SERVER_MAX_STREAMS", "5", "server", "max_streams", 5),
        ("AGENT_REACH_SERVER_INSECURE", "true", "server", "insecure", True),
        ("AGENT_REACH_SERVER_INSECURE", "0", "server", "insecure", False),
        ("AGENT_REACH_TELEMETRY_SAMPLE_RATIO", "0.5", "telemetry", "sample_ratio", 0.5),
        ("AGENT_REACH_TELEMETRY_SAMPLE_RATIO", "1", "telemetry", "sample_ratio", 1.0),
        ("AGENT_REACH_STORAGE_TYPE", "memory", "storage", "type", "memory"),
        ("AGENT_REACH_STORAGE_PATH", "/7", "storage", "path", "/7"),
        ("AGENT_REACH_SERVER_NODE_ID", "7", "server", "node_id", "7"),
        ("AGENT_REACH_SERVER_PORT", "", "server", "port", 8900),
    ],
)
def test_the_environment_is_text_that_becomes_what_the_field_is(variable, value, section, key, expected):
    loaded = load(None, HOME | {variable: value})
    got = getattr(getattr(loaded, section), key)
    assert got == expected
    assert type(got) is type(expected)


def test_every_field_has_its_variable():
    for section in msgspec.structs.fields(Config):
        for field in msgspec.structs.fields(type(section.default)):
            variable = f"AGENT_REACH_{section.name}_{field.name}".upper()
            if field.default is not msgspec.NODEFAULT and field.default != "":
                value = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
                assert load(None, HOME | {variable: value}) == load(None, HOME), variable


def test_variables_of_clients_are_passed_over():
    environ = {"AGENT_REACH_ADDR": "x:1", "AGENT_REACH_API_KEY": "ar_x_y", "PATH": "/bin", "AGENT_REACHED": "1"}
    assert load(None, HOME | environ) == load(None, HOME)


@pytest.mark.parametrize(
    ("given", "environ", "expected"),
    [
        (None, {"HOME": "/h"}, "/h/.local/share/agentreach"),
        (None, {"HOME": "/h", "XDG_DATA_HOME": "/xdg"}, "/xdg/agentreach"),
        (None, {"HOME": "/h", "XDG_DATA_HOME": "relative"}, "/h/.local/share/agentreach"),
        ("~/here", {"HOME": "/h"}, "/h/here"),
        ("~", {"HOME": "/h"}, "/h"),
        ("/a/~b", {"HOME": "/h"}, "/a/~b"),
        ("data", {"HOME": "/h"}, f"{Path.cwd()}/data"),
    ],
)
def test_the_data_folder_is_absolute(given, environ, expected):
    assert load(None, environ, {"storage.path": given}).storage.path == expected


def test_nothing_can_be_changed_afterwards():
    loaded: msgspec.Struct = load(None, HOME)
    with pytest.raises(AttributeError):
        loaded.server = None  # type: ignore[attr-defined]


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("server:\n  prot: 1\n", 2, ["server.prot is unknown", "did you mean server.port?"]),
        ("servr:\n  port: 1\n", 1, ["servr is unknown", "did you mean server?"]),
        ("storage:\n  port: 1\n", 2, ["storage.port is unknown", "did you mean storage.path?"]),
        ("server:\n  port: 1\n  zzzzzzzz: 1\n", 3, ["server.zzzzzzzz is unknown", "docs/configuration.md"]),
        ("server:\n  port: 99999\n", 2, ["server.port", "<= 65535", "it is 99999"]),
        ("server:\n  port: '8900'\n", 2, ["server.port", "expected int", "it is '8900'"]),
        ("server:\n  port: true\n", 2, ["server.port", "expected int"]),
        ("server:\n  port:\n", 2, ["server.port", "expected int", "None"]),
        ("server:\n  port: [1]\n", 2, ["server.port"]),
        ("\n\nstorage:\n\n  type: oracle\n", 5, ["storage.type", "'oracle'"]),
        ("storage:\n  type: postgres\n", 2, ["storage.url", "postgres://"]),
        ("storage:\n  url: postgres://a@b/c\n", 2, ["storage.url", "storage.type"]),
        ("storage:\n  password_file: /dev/null\n", 2, ["storage.password_file", "storage.url"]),
        ("telemetry:\n  sample_ratio: .nan\n", 2, ["sample_ratio", "finite"]),
        ("telemetry:\n  sample_ratio: 1.5\n", 2, ["sample_ratio", "<= 1"]),
        ("heartbeat:\n  interval: .inf\n", 2, ["heartbeat.interval", "finite"]),
        ("server:\n  port: 1\n  port: 2\n", 3, ["server.port is there twice", "line 2"]),
        ("server:\n  port: 1\nserver:\n  port: 2\n", 3, ["server is there twice"]),
        ("server: 5\n", 1, ["section server must hold keys and values"]),
        ("- a\n", 1, ["the file must hold keys and values"]),
        ("just words\n", 1, ["the file must hold keys and values"]),
        ("server:\n  ? [a, b]\n  : 1\n", 2, ["is unknown"]),
        ("server:\n\tport: 1\n", 2, ["is not YAML"]),
        ("server: {port: 1\n", 2, ["is not YAML"]),
        ("server: *nobody\n", 1, ["is not YAML"]),
        ("a: 1\n---\nb: 2\n", 2, ["is not YAML"]),
        ("server:\n  host: !!python/object/apply:os.system ['true']\n", 2, ["is not YAML"]),
        ("server:\n  node_id: 'a b'\n", 2, ["server.node_id"]),
        ('server:\n  node_id: "x\\n"\n', 2, ["server.node_id"]),
        ("server:\n  client_identities:\n    - identity: x\n", 2, ["client_identities", "tenant"]),
        (
            "server:\n  client_identities:\n    - {identity: x, tenant: A, app_id: b, scopes: [caller]}\n",
            2,
            ["client_identities", "tenant"],
        ),
        (
            "server:\n  client_identities:\n    - {identity: x, tenant: a, app_id: b, scopes: [boss]}\n",
            2,
            ["client_identities", "boss"],
        ),
        ("<<: {server: {port: 1}}\n", 1, ["is unknown"]),
    ],
)
def test_cfg_1_a_bad_file_is_refused_with_its_line(tmp_path, text, line, words):
    path = written(tmp_path, text)
    (problem,) = refused(path)
    assert problem.startswith(f"{path}:{line}: ")
    assert [word for word in words if word not in problem] == []


def test_all_problems_are_told_at_once(tmp_path):
    path = written(tmp_path, "server:\n  prot: 1\n  port: x\nregistry:\n  strict: 7\nnonsense: 1\n")
    problems = refused(path, {"AGENT_REACH_SERVER_PROT": "1"}, {"server.nothing": 1})
    assert len(problems) == 6
    assert "did you mean AGENT_REACH_SERVER_PORT?" in "\n".join(problems)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"AGENT_REACH_SERVER_PORT": "x"}, ["environment: AGENT_REACH_SERVER_PORT", "expected int"]),
        ({"AGENT_REACH_SERVER_PROT": "1"}, ["AGENT_REACH_SERVER_PROT is unknown", "AGENT_REACH_SERVER_PORT"]),
        ({"AGENT_REACH_PORT": "1"}, ["AGENT_REACH_PORT is unknown"]),
        ({"AGENT_REACH_TELEMETRY_SAMPLE_RATIO": "nan"}, ["AGENT_REACH_TELEMETRY_SAMPLE_RATIO"]),
        ({"AGENT_REACH_TELEMETRY_SAMPLE_RATIO": "1e999"}, ["AGENT_REACH_TELEMETRY_SAMPLE_RATIO"]),
        ({"AGENT_REACH_SERVER_CLIENT_IDENTITIES": "[{"}, ["AGENT_REACH_SERVER_CLIENT_IDENTITIES"]),
    ],
)
def test_a_bad_environment_is_refused_with_its_variable(environ, words):
    (problem,) = refused(None, environ)
    assert [word for word in words if word not in problem] == []


@pytest.mark.parametrize("content", [b"\xff\xfe\x00\x01", b"a: \x00", b"\x80", b'server:\n  host: "\\ud800"\n'])
def test_bytes_that_are_no_text_are_refused(tmp_path, content):
    refused(written(tmp_path, content))


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path):
    assert "cannot be read" in refused(tmp_path / "missing.yaml")[0]
    assert "cannot be read" in refused(tmp_path)[0]
    assert "larger than" in refused(written(tmp_path, "#" * (1 << 20) + "\n"))[0]


def test_few_aliases_that_stand_for_billions_of_nodes_are_refused(tmp_path):
    rows = ["x: &a0 [1, 1]"] + [f"y{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 20)]
    body = "\n".join(rows) + "\nserver:\n  client_identities: *a19\n"
    assert any("too large" in problem for problem in refused(written(tmp_path, body)))


def test_deep_nesting_is_refused(tmp_path):
    refused(written(tmp_path, "server: {host: " + "[" * 5000 + "]" * 5000 + "}"))


@given(st.dictionaries(st.text(max_size=8), st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=8),
       lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
       max_leaves=5), max_size=4))  # fmt: skip
def test_whatever_options_hold_is_taken_or_refused_in_words(overrides):
    known = {
        f"server.{name}": value for name, value in zip(("port", "host", "node_id"), overrides.values(), strict=False)
    }
    with suppress(ConfigError):
        load(None, HOME, overrides | known)


# -- what must fit together -------------------------------------------------------------------------------------------


@pytest.fixture
def pem(tmp_path):
    path = tmp_path / "x.pem"
    path.write_text("not looked at here")
    return str(path)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"tls_cert": "PEM"}, ["server.tls_cert needs server.tls_key"]),
        ({"tls_key": "PEM"}, ["server.tls_key needs server.tls_cert"]),
        ({"tls_cert": "PEM", "tls_key": "/no/such/file"}, ["server.tls_key cannot be read: /no/such/file"]),
        ({"tls_client_ca": "PEM", "client_cert_required": True}, ["tls_client_ca needs"]),
        ({"tls_cert": "PEM", "tls_key": "PEM", "tls_client_ca": "PEM"}, ["must be set together"]),
        ({"client_cert_required": True}, ["must be set together"]),
        ({"port": 8800}, ["both 8800"]),
        ({"advertise": "no-port"}, ["host:port"]),
        ({"advertise": "user@host:1"}, ["host:port"]),
        ({"host": "0.0.0.0"}, ["without authentication", "without TLS"]),
        ({"host": "0.0.0.0", "auth": "keys"}, ["without TLS"]),
        ({"host": "example.org", "tls_cert": "PEM", "tls_key": "PEM"}, ["without authentication"]),
        ({"host": "::"}, ["without authentication"]),
        ({"host": "192.168.1.5"}, ["without authentication"]),
    ],
)
def test_gov_2_what_does_not_fit_together_is_refused(pem, overrides, words):
    given_ = {f"server.{key}": pem if value == "PEM" else value for key, value in overrides.items()}
    problems = "\n".join(refused(None, None, given_))
    assert [word for word in words if word not in problems] == []


def test_gov_2_all_pages_of_the_world_may_call_only_with_a_key():
    problems = "\n".join(refused(None, None, {"http.cors_origins": ["*"]}))
    assert "http.cors_origins '*' needs server.auth" in problems
    load(None, HOME, {"http.cors_origins": ["*"], "server.auth": "keys"})
    load(None, HOME, {"http.cors_origins": ["https://console.example:8443"]})
    for wrong in ("console.example", "https://a.example/path", "https://a@b.example", "https://*.example"):
        assert refused(None, None, {"http.cors_origins": [wrong]}), wrong


@pytest.mark.parametrize(
    "overrides",
    [
        {"host": "localhost"},
        {"host": "127.0.0.9"},
        {"host": "::1"},
        {"host": "0.0.0.0", "insecure": True},
        {"host": "0.0.0.0", "auth": "keys", "tls_cert": "PEM", "tls_key": "PEM"},
        {"host": "0.0.0.0", "tls_cert": "PEM", "tls_key": "PEM", "tls_client_ca": "PEM", "client_cert_required": True},
        {"port": 0, "admin_port": 0},
        {"advertise": "reach.example.org:443"},
        {"advertise": "[2001:db8::1]:8900"},
    ],
)
def test_gov_2_what_fits_together_is_taken(pem, overrides):
    load(None, HOME, {f"server.{key}": pem if value == "PEM" else value for key, value in overrides.items()})


def test_a_relation_that_is_broken_names_where_its_fields_come_from(tmp_path):
    path = written(tmp_path, "\nserver:\n  port: 7000\n")
    (problem,) = refused(path, {"AGENT_REACH_SERVER_ADMIN_PORT": "7000"})
    assert problem == (
        f"{path}:3: environment: AGENT_REACH_SERVER_ADMIN_PORT: server.port and server.admin_port are both 7000"
    )


def test_probes_come_sooner_after_a_failure_never_later():
    assert refused(None, None, {"probe.interval": 1, "probe.retry_interval": 2}) != ()


@pytest.mark.parametrize(
    ("endpoint", "is_good"),
    [
        ("http://collector:4317", True), ("https://10.0.0.1:4317/", True), ("http://[::1]:4317", True), ("", True),
        ("collector:4317", False), ("grpc://collector:4317", False), ("http://", False),
        ("http://collector:4317/v1/traces", False), ("http://a b:1", False), ("http://collector:4317?x=1", False),
    ],
)  # fmt: skip
def test_collectors_are_urls(endpoint, is_good):
    if is_good:
        load(None, HOME, {"telemetry.otlp_endpoint": endpoint})
    else:
        refused(None, None, {"telemetry.otlp_endpoint": endpoint})


def test_client_identities_are_read_and_unique(tmp_path, pem):
    text = f"""\
server:
  auth: keys
  tls_cert: {pem}
  tls_key: {pem}
  tls_client_ca: {pem}
  client_cert_required: true
  client_identities:
    - identity: spiffe://acme/billing
      tenant: acme
      app_id: billing
      scopes: [caller, reader]
"""
    expected = ClientIdentity(
        identity="spiffe://acme/billing", tenant="acme", app_id="billing", scopes=frozenset({"caller", "reader"})
    )
    assert load(written(tmp_path, text), HOME).server.client_identities == [expected]
    twice = text + text[text.index("    - identity") :]
    assert "twice" in refused(written(tmp_path, twice))[0]
    assert "needs" in refused(written(tmp_path, text.replace("auth: keys", "auth: none")))[0]


def test_tokens_of_agents_are_read_and_unique_and_their_files_are_there(tmp_path):
    token = tmp_path / "token"
    token.write_text("secret")
    text = f"""\
agents:
  auth:
    - name: ours
      token_file: {token}
      hosts: [agent.internal, 10.0.0.7]
"""
    expected = AgentAuth(name="ours", token_file=str(token), hosts=frozenset({"agent.internal", "10.0.0.7"}))
    assert load(written(tmp_path, text), HOME).agents.auth == [expected]
    assert expected.tenants == {"default"}
    twice = text + text[text.index("    - name") :]
    assert "twice" in refused(written(tmp_path, twice))[0]
    missing = refused(written(tmp_path, text.replace(str(token), "/no/such/file")))[0]
    assert "the token file of 'ours' cannot be read" in missing
    assert "hosts" in refused(written(tmp_path, text.replace("      hosts: [agent.internal, 10.0.0.7]\n", "")))[0]
    variable = {"AGENT_REACH_AGENTS_AUTH": f"[{{name: ours, token_file: {token}, hosts: [agent.internal, 10.0.0.7]}}]"}
    assert load(None, HOME | variable).agents.auth == [expected]


def test_probes_of_unreachable_agents_are_not_more_frequent_than_retries(tmp_path):
    text = "probe:\n  retry_interval: 5\n  unreachable_interval: 1\n"
    assert "probe.unreachable_interval" in refused(written(tmp_path, text))[0]


def test_loopback_is_only_what_is_certainly_loopback():
    assert all(map(is_loopback, ("localhost", "LOCALHOST", "127.0.0.1", "127.255.0.3", "::1", "[::1]")))
    assert not any(
        map(is_loopback, ("", "0.0.0.0", "::", "10.0.0.1", "localhost.example.org", "example", "127.1.1", "::2"))
    )


# -- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_is_in_step():
    assert PAGE.read_text() == reference(), "run: python -m reach.config > docs/configuration.md"


def test_the_module_prints_the_page():
    printed = subprocess.run([sys.executable, "-m", "reach.config"], check=True, capture_output=True, text=True)
    assert printed.stdout == reference()


def test_the_page_does_not_depend_on_the_machine(monkeypatch):
    before = reference()
    monkeypatch.setenv("HOME", "/elsewhere")
    monkeypatch.setenv("AGENT_REACH_SERVER_PORT", "1")
    assert reference() == before
    assert os.environ["HOME"] not in before


def test_every_field_says_what_it_does_and_what_extremes_do():
    for section in msgspec.structs.fields(Config):
        texts = field_texts(type(section.default))
        for field in msgspec.structs.fields(type(section.default)):
            name, text = f"{section.name}.{field.name}", texts[field.name]
            assert len(text) > 20, name
            kind = str(field.type)
            if re.search(r"\b(?:int|float)\b", kind) and not name.endswith("port"):
                assert ("small" in text and "large" in text) or "hard limit" in text, name


def test_everything_is_exported():
    assert {type(info.default).__name__ for info in msgspec.structs.fields(Config)} <= set(config.__all__)


def test_HLT_11_the_parts_of_the_reach_score_come_to_a_hundred():
    assert refused(None, None, {"health.reach_rtt": 31}) != ()
    assert refused(None, None, {"health.reach_rtt_good": 1, "health.reach_rtt_bad": 0.5}) != ()


def test_defaults_of_health_are_those_of_the_core():
    assert thresholds_of(Config()) == THRESHOLDS


def test_RTE_3_own_policies_come_from_the_file(tmp_path: Path) -> None:
    text = """
router:
  policy: careful
  policies:
    careful: {success_rate: 3, capacity: 1, near_tie: 0.05}
  pool_policies: {summarizer: least_connections}
"""
    router = load(written(tmp_path, text), HOME).router
    assert router.policies == {"careful": {"success_rate": 3.0, "capacity": 1.0, "near_tie": 0.05}}
    assert router.pool_policies == {"summarizer": "least_connections"}
    environ = {**HOME, "AGENT_REACH_ROUTER_POLICIES": "{mine: {load: 1}}"}
    assert load(None, environ).router.policies == {"mine": {"load": 1.0}}


@pytest.mark.parametrize(
    ("router", "told"),
    [
        ("policy: best", "router.policy: there is no policy 'best'; there is balanced, reachability"),
        ("pool_policies: {x: best}", "router.pool_policies: there is no policy 'best'"),
        ("policies: {p: {speed: 1}}", "router.policies.p: there is no signal 'speed'"),
        ("policies: {p: {latency: -1}}", "router.policies.p: latency must be 0 or more, it is -1"),
        ("policies: {p: {latency: .nan}}", "router.policies.p: latency must be 0 or more, it is nan"),
        ("policies: {p: {latency: 0}}", "router.policies.p: its weights sum to 0"),
        ("policies: {balanced: {latency: 1}}", "router.policies.balanced: balanced is a built-in policy"),
        ("policies: {p: {latency: fast}}", "router.policies: expected float, got str"),
        ("policies: [p]", "router.policies: expected object, got array"),
        ("canary_share: 2", "router.canary_share: expected float <= 1"),
    ],
)
def test_RTE_3_policies_that_mean_nothing_are_told_with_file_and_line(tmp_path: Path, router: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, f"router:\n  {router}\n"), HOME)
    (problem,) = caught.value.problems
    assert told in problem
    assert re.search(r"reach\.yaml:2", problem)


@pytest.mark.parametrize(
    "hooks",
    [
        [{"agent_type": "a"}],
        [{"agent_type": "a", "command": ["x"], "url": "http://h/"}],
        [{"agent_type": "a", "url": "ftp://h/"}],
        [{"agent_type": "a", "command": ["x"]}, {"agent_type": "a", "command": ["y"]}],
    ],
)
def test_HLT_14_a_wake_hook_is_one_command_or_one_url(hooks, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps({"wake": {"hooks": hooks}}))
    assert refused(file, None, None) != ()


def test_webhooks_need_readable_secrets_and_results_that_last(tmp_path):
    (tmp_path / "secret").write_text("hush")
    row = f"{{name: main, file: {tmp_path}/secret}}"
    given = tmp_path / "reach.yaml"
    given.write_text(f"webhooks:\n  secrets: [{row}]\n  hosts: [hooks.internal]\n")
    assert load(given, HOME).webhooks.secrets[0].tenants == {"default"}
    for text, complaint in (
        (f"webhooks:\n  secrets: [{row}, {row}]\n", "has 'main' twice"),
        (f"webhooks:\n  secrets: [{{name: main, file: {tmp_path}/none}}]\n", "cannot be read"),
        ("webhooks:\n  give_up_hours: 25\n", "must not be longer than results.keep_hours"),
    ):
        given.write_text(text)
        with pytest.raises(ConfigError, match=complaint):
            load(given, HOME)


def test_CFG_1_a_node_that_others_are_sent_to_listens_where_they_can_come(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("a secret of at least sixteen bytes")
    overrides = {"cluster.endpoints": ["e:2379"], "storage.type": "postgres", "storage.url": "postgres://u@h/d",
                 "cluster.secret_file": str(secret), "server.advertise": "node-1:8900"}  # fmt: skip
    with pytest.raises(ConfigError, match="listen where they can reach it"):
        load(None, {"HOME": "/"}, overrides)
    load(None, {"HOME": "/"}, {**overrides, "server.advertise": "127.0.0.1:8900"})
    load(None, {"HOME": "/"}, {**overrides, "server.host": "0.0.0.0", "server.insecure": True})


def test_CFG_1_a_cluster_says_all_that_it_lacks():
    overrides = {"cluster.endpoints": ["etcd"], "server.host": "0.0.0.0", "server.insecure": True, "cluster.user": "me"}
    with pytest.raises(ConfigError) as caught:
        load(None, {"HOME": "/"}, overrides)
    told = "\n".join(caught.value.problems)
    for words in ("'etcd' is not host:port", "storage.type postgres", "cluster.secret_file", "server.advertise",
                  "cluster.password_file"):  # fmt: skip
        assert words in told
