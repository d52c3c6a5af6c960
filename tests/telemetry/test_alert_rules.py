"""The alert rules for Prometheus speak of metrics and kinds of alerts that there are (OBS-4)."""

import re
from pathlib import Path

import yaml

from reach.core.placement import SHARDS
from reach.telemetry.metrics import ALERTS, NODE, Metrics

FILE = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yaml"


def test_OBS_4_every_rule_is_about_a_metric_that_is_told():
    metrics = Metrics()
    metrics.sources.node = lambda: dict.fromkeys((name for name, _ in NODE), 1.0)
    told = {}
    for family in metrics.families():
        names = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        told.update({family.name + suffix: family for suffix in names})
    rules = [rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 10
    for rule in rules:
        named = re.findall(r"agentreach_\w+", rule["expr"])
        assert named or "up{" in rule["expr"]
        assert set(named) <= told.keys(), rule["alert"]
        for kinds in re.findall(r'kind=~?"([^"]+)"', rule["expr"]):
            assert set(kinds.split("|")) <= set(ALERTS)
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
    (shards,) = [rule["expr"] for rule in rules if rule["alert"] == "AgentReachShardsUnowned"]
    assert str(SHARDS) in shards
