"""Tasks addressed by what they need: intents, skills, tags, texts, schemas; and which of several pools takes one
(REG-4, REG-5, RTE-5, RTE-6, RTE-11, RTE-15), over real gRPC."""

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.rpc.peers import TIMEOUT, AgentByHand, CallerByHand, Stubs, pb, reason_name, refusal, running, unique

pytestmark = pytest.mark.asyncio(loop_scope="module")

SKILLS = """\
skills:
  summarization: {aliases: [summarize, text_sum], description: Makes texts short.}
  refunds: {aliases: [refund]}
  support: {}
  images: {}
  drafts: {exclude_types: [banned-drafts]}
"""
ROUTES = """\
routes:
  - {intent_prefix: shop, require_capability: support}
  - intent_prefix: shop.refund
    require_capability: refund
    tags: [vip]
    timeout_ms: 2500
    retry: never
  - {intent_prefix: talk, require_capability: support, session_required: true, session_ttl: 60}
  - {intent_prefix: both, parallel: [shop, talk]}
  - {intent_prefix: fall, require_capability: drafts, fallback_intent: shop}
"""


@asynccontextmanager
async def node_with(folder: Path, skills: str = SKILLS, routes: str = ROUTES, **settings: Any):
    files = folder / "skills.yaml", folder / "routes.yaml"
    for file, text in zip(files, (skills, routes), strict=True):
        file.write_text(text)
    named = {"router__vocabulary_file": str(files[0]), "router__routes_file": str(files[1])}
    async with running(folder, **named, **settings) as node:
        yield node


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[True, False], ids=["strict", "lenient"])
async def world(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("node")
    async with node_with(folder, registry__strict=request.param) as node, Stubs(node.port) as stubs:
        yield stubs, request.param


@pytest_asyncio.fixture(loop_scope="module")
async def agents(world):
    made: list[AgentByHand] = []

    async def join(agent_type: str, *capabilities: Any, **fields: Any) -> AgentByHand:
        agent = AgentByHand(world[0])
        named = [{"name": one} if isinstance(one, str) else one for one in capabilities]
        await agent.join(unique(agent_type), agent_type=agent_type, capabilities=named, **fields)
        made.append(agent)
        return agent

    yield join
    stubs = world[0]
    # what is left would go to who comes next
    listed = await stubs.dispatch.ListTasks(pb.ListTasksRequest(page_size=500))
    for task in listed.tasks:
        await stubs.dispatch.CancelTask(pb.CancelTaskRequest(task_id=task.spec.task_id))
    for agent in made:
        await world[0].registry.Deregister(pb.DeregisterRequest(instance_id=agent.instance_id))
        await agent.close()


async def submit(stubs: Stubs, payload: Any = None, session: Any = None, **selector: Any) -> str:
    task_id = unique("task")
    spec: dict[str, Any] = {"task_id": task_id, "selector": selector, "payload": payload or {"text": "x"}}
    if session is not None:
        spec["session"] = session
    await stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec), timeout=TIMEOUT)
    return task_id


async def offered(agent: AgentByHand, task_id: str) -> Any:
    offer = await agent.next("offers")
    assert offer.task.task_id == task_id
    return offer


def json_payload(value: Any) -> dict[str, str]:
    return {"text": json.dumps(value), "media_type": "application/json"}


# -- intents ----------------------------------------------------------------------------------------------------------


async def test_RTE_6_an_intent_goes_where_its_route_says_with_its_time_limit(world, agents):
    stubs, _ = world
    await agents("plain-shop", "support", "refunds")
    vip = await agents("vip-shop", "refunds", tags=["vip"])
    offer = await offered(vip, await submit(stubs, intent="shop.refund.late"))
    assert offer.start_to_close.ToMilliseconds() == 2_500
    await vip.accept(offer)
    await vip.finish(
        offer, error={"error_class": "ERROR_CLASS_UNAVAILABLE", "reason": "ERROR_REASON_AGENT_UNAVAILABLE"}
    )
    task = (await stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=offer.task.task_id))).task
    assert task.state == pb.TASK_STATE_DEAD_LETTERED  # the route says: no retry


async def test_RTE_6_a_session_can_be_required(world, agents):
    stubs, _ = world
    agent = await agents("talker", "support")
    spec = {"selector": {"intent": "talk.more"}}
    code, reason, text = await refusal(stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec)))
    assert (code, reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert "intent 'talk.more' needs a session" in text
    session = {"app_id": "a", "user_id": "u", "session_id": "s"}
    await offered(agent, await submit(stubs, intent="talk.more", session=session))


async def test_REG_5_aliases_meet(world, agents):
    stubs, _ = world
    agent = await agents("sum", "text_sum", max_concurrency=9)
    for name in ("summarization", "summarize", "Text-Sum"):
        await offered(agent, await submit(stubs, capability=name))


SAID = [
    ({"intent": "nowhere.at.all"}, "NOT_FOUND", "NO_ROUTE", "'nowhere.at.all'"),
    ({"intent": "a..b"}, "INVALID_ARGUMENT", "INVALID_FIELD", "task.selector.intent"),
    ({"intent": "both"}, "UNIMPLEMENTED", "NOT_IMPLEMENTED", "several agents at once"),
    ({"intent": "fall"}, "UNIMPLEMENTED", "NOT_IMPLEMENTED", "falling back to 'shop' is not built yet"),
    ({"text": "what is the weather"}, "NOT_FOUND", "NO_TEXT_MATCH", "'what is the weather'"),
    ({"text": "x" * 20_000}, "INVALID_ARGUMENT", "INVALID_FIELD", "task.selector.text"),
    ({}, "INVALID_ARGUMENT", "INVALID_FIELD", "names nobody"),
    ({"agent_type": "x", "capability_version": "1"}, "INVALID_ARGUMENT", "INVALID_FIELD", "needs a capability"),
]


@pytest.mark.parametrize(("selector", "code", "reason", "words"), SAID)
async def test_RTE_6_what_leads_nowhere_is_refused_with_its_reason(world, selector, code, reason, words):
    said = await refusal(world[0].dispatch.Dispatch(pb.DispatchRequest(task={"selector": selector})))
    assert said[:2] == (code, reason)
    assert words in said[2]


LACKING = [
    ({"capability": "images"}, "NO_CAPABLE_AGENT", "no agent has capability 'images'"),
    ({"agent_type": "nobody-here"}, "NO_MATCHING_AGENT", "no agent of type 'nobody-here' is registered"),
    ({"capability": "support", "required_tags": ["gpu"]}, "NO_TAGGED_AGENT",
     "no agent with capability 'support' carries tag 'gpu'"),
    ({"capability": "support", "accepted_languages": ["fr"]}, "NO_MATCHING_AGENT",
     "no agent with capability 'support' speaks 'fr'"),
    ({"capability": "support", "capability_version": "9"}, "NO_CAPABLE_AGENT", "has version '9' of it"),
]  # fmt: skip


@pytest.mark.parametrize(("selector", "reason", "words"), LACKING)
async def test_REG_5_what_nobody_has_is_refused_if_strict_and_waits_visibly_otherwise(
    world, agents, selector, reason, words
):
    stubs, strict = world
    await agents("helper", {"name": "support", "version": "1"}, languages=["en"])
    call = stubs.dispatch.Dispatch(pb.DispatchRequest(task={"selector": selector}))
    if strict:
        code, told, text = await refusal(call)
        assert (code, told, words in text) == ("NOT_FOUND", reason, True)
        return
    answer = await call
    assert any(words in warning for warning in answer.warnings)
    task = (await stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=answer.task_id))).task
    assert task.state == pb.TASK_STATE_PENDING
    assert task.pending_reason.startswith("no_match: ")
    assert words in task.pending_reason
    await stubs.dispatch.CancelTask(pb.CancelTaskRequest(task_id=answer.task_id))


async def test_REG_5_unknown_skills_are_refused_if_strict_and_noted_otherwise(world):
    stubs, strict = world
    registration = {"agent_id": unique("dancer"), "boot_id": "b", "capabilities": [{"name": "summarise"}]}
    register = stubs.registry.Register(pb.RegisterRequest(registration=registration))
    dispatch = stubs.dispatch.Dispatch(pb.DispatchRequest(task={"selector": {"capability": "dance"}}))
    if strict:
        for call, name in ((register, "summarise"), (dispatch, "dance")):
            code, reason, text = await refusal(call)
            assert (code, reason) == ("INVALID_ARGUMENT", "UNKNOWN_SKILL")
            assert f"skill '{name}' is not in the vocabulary" in text
        return
    registered = await register
    assert list(registered.warnings) == ["skill 'summarise' is not in the vocabulary; did you mean summarization?"]
    answer = await dispatch
    assert "skill 'dance' is not in the vocabulary" in answer.warnings
    await stubs.dispatch.CancelTask(pb.CancelTaskRequest(task_id=answer.task_id))
    await stubs.registry.Deregister(pb.DeregisterRequest(instance_id=registered.instance_id))


async def test_REG_5_a_waiting_task_goes_to_the_one_who_comes(world, agents):
    stubs, strict = world
    if strict:
        return
    by_intent = await submit(stubs, intent="shop.question")
    by_alias = await submit(stubs, capability="text_sum")
    shop = await agents("late-shop", "support")
    await offered(shop, by_intent)
    await offered(await agents("late-sum", "summarize"), by_alias)


# -- schemas ----------------------------------------------------------------------------------------------------------

NEEDS_TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def schema(name: str, parameters: Any, version: str = "") -> dict[str, str]:
    return {"name": name, "version": version, "parameter_schema": json.dumps(parameters)}


async def test_REG_4_parameters_are_compared_before_dispatch_and_the_path_is_named(world, agents):
    stubs, _ = world
    agent = await agents("reader", schema("summarize", NEEDS_TEXT))
    for payload, path, words in (
        (json_payload({"text": 3}), "/text", 'the value is not of type "string"'),
        (json_payload({}), "", '"text" is a required property'),
        ({"text": "{"}, "", "not of type"),
        ({"data": b"\xff", "media_type": "application/json"}, "", "not JSON"),
    ):
        spec = {"selector": {"capability": "summarization"}, "payload": payload}
        code, reason, text = await refusal(stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec)))
        assert (code, reason) == ("INVALID_ARGUMENT", "SCHEMA_MISMATCH")
        assert f"capability 'summarization': at {path or 'the top'}: " in text
        assert words in text
    await offered(agent, await submit(stubs, json_payload({"text": "x"}), capability="summarization"))


async def test_REG_4_of_two_schemas_the_one_that_fits_is_chosen_also_within_a_pool(world, agents):
    stubs, _ = world
    old = await agents("drawer", schema("images", {"required": ["name"]}, "1"), max_concurrency=9)
    new = await agents("drawer", schema("images", {"required": ["title"]}, "2"), max_concurrency=9)
    other = await agents("painter", schema("images", {"required": ["colour"]}), max_concurrency=9)
    for _ in range(3):
        await offered(old, await submit(stubs, json_payload({"name": 1}), capability="images"))
        await offered(new, await submit(stubs, json_payload({"title": 1}), capability="images"))
        await offered(other, await submit(stubs, json_payload({"colour": 1}), capability="images"))
    spec = {"selector": {"capability": "images"}, "payload": json_payload({"x": 1})}
    assert (await refusal(stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec))))[1] == "SCHEMA_MISMATCH"


async def test_REG_4_a_bad_schema_is_refused_when_the_agent_registers(world):
    stubs, _ = world
    for bad, words in (
        ({"$ref": "http://127.0.0.1:1/"}, "only places within"),
        ({"type": "nope"}, "is no JSON Schema"),
    ):
        registration = {"agent_id": "bad", "boot_id": "b", "capabilities": [schema("images", bad)]}
        code, reason, text = await refusal(stubs.registry.Register(pb.RegisterRequest(registration=registration)))
        assert (code, reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")
        assert "registration.capabilities.parameter_schema" in text
        assert words in text


async def test_REG_4_a_task_that_waited_for_an_agent_it_does_not_fit_is_told_so(world, agents):
    stubs, strict = world
    if strict:
        return
    task_id = await submit(stubs, json_payload({}), capability="summarize")
    await agents("reader", schema("summarization", NEEDS_TEXT))
    answer = await stubs.dispatch.WaitForResult(pb.WaitForResultRequest(task_id=task_id), timeout=TIMEOUT)
    assert answer.result.state == pb.TASK_STATE_FAILED
    assert reason_name(answer.result.error) == "SCHEMA_MISMATCH"


# -- texts ------------------------------------------------------------------------------------------------------------


async def test_RTE_5_a_text_goes_to_the_agent_whose_description_fits(world, agents):
    stubs, _ = world
    refunds = {"name": "refunds", "description": "Pays money back", "examples": ["I want my money back"]}
    paying = await agents("paying", refunds, max_concurrency=9)
    short = await agents("short", "summarization", max_concurrency=9)
    await offered(paying, await submit(stubs, text="Hello, can I have my money back?"))
    await offered(short, await submit(stubs, text="please summarize this long mail"))


# -- which pool -------------------------------------------------------------------------------------------------------


async def test_RTE_15_a_pool_whose_only_fitting_instance_is_full_loses_to_one_with_a_free_one(world, agents):
    stubs, _ = world
    tagged = await agents("mixed", "drafts", tags=["gpu"])
    for _ in range(5):
        await agents("mixed", "drafts")
    await offered(tagged, await submit(stubs, instance_id=tagged.instance_id))
    other = await agents("single", "drafts", tags=["gpu"])
    await offered(other, await submit(stubs, capability="drafts", required_tags=["gpu"]))


async def test_RTE_15_a_burst_is_spread_over_the_free_slots_of_the_pools(world, agents):
    stubs, _ = world
    one = await agents("left", "drafts", max_concurrency=6)
    two = await agents("right", "drafts", max_concurrency=2)
    caller = CallerByHand(stubs)
    await caller.open()
    ids = [unique("burst") for _ in range(8)]
    submits = [{"reference": at, "task": {"task_id": task_id, "selector": {"capability": "drafts"}}}
               for at, task_id in enumerate(ids, 1)]  # fmt: skip
    await caller.send(submits=submits)
    got = [(await agent.next("offers")).task.task_id for agent in [one] * 6 + [two] * 2]
    assert sorted(got) == sorted(ids)
    await caller.close()


async def test_RTE_11_the_higher_priority_comes_first_and_a_full_one_spills(world, agents):
    stubs, _ = world
    low = await agents("low", "drafts", max_concurrency=9, priority=2)
    high = await agents("high", "drafts", max_concurrency=3, priority=7)
    for _ in range(3):
        await offered(high, await submit(stubs, capability="drafts"))
    await offered(low, await submit(stubs, capability="drafts"))


async def test_RTE_11_an_excluded_type_does_not_serve_the_skill(world, agents):
    stubs, _ = world
    await agents("banned-drafts", "drafts", max_concurrency=9, priority=9)
    good = await agents("good-drafts", "drafts", max_concurrency=9)
    for _ in range(3):
        await offered(good, await submit(stubs, capability="drafts"))


async def test_RTE_15_a_region_is_preferred_and_no_condition(world, agents):
    stubs, _ = world
    here = await agents("here", "drafts", max_concurrency=2, region="eu")
    there = await agents("there", "drafts", max_concurrency=9, region="us")
    for agent in (here, here, there):
        await offered(agent, await submit(stubs, capability="drafts", region="eu"))


async def test_RTE_7_a_session_stays_in_the_pool_that_has_it(world, agents):
    stubs, _ = world
    one = await agents("one", "drafts", max_concurrency=100)
    two = await agents("two", "drafts", max_concurrency=100)
    counts: Counter[str] = Counter()
    for number in range(8):
        session = {"app_id": "a", "user_id": "u", "session_id": f"s{number}"}
        for _ in range(3):
            await submit(stubs, capability="drafts", session=session)
    async with asyncio.timeout(TIMEOUT):
        while len(one.seen["offers"]) + len(two.seen["offers"]) < 24:  # noqa: ASYNC110 - two streams
            await asyncio.sleep(0.02)
    for agent in (one, two):
        counts.update(offer.task.session.session_id for offer in agent.seen["offers"])
        assert all(
            sum(offer.task.session.session_id == name for offer in agent.seen["offers"]) in (0, 3) for name in counts
        )


async def test_RTE_15_tags_or_a_method_alone_select(world, agents):
    stubs, _ = world
    agent = await agents("tagged", "drafts", tags=["rare"], methods=[{"name": "only.here"}], max_concurrency=9)
    await offered(agent, await submit(stubs, required_tags=["rare"]))
    task_id = unique("task")
    await stubs.dispatch.Dispatch(pb.DispatchRequest(task={"task_id": task_id, "method": "only.here"}))
    await offered(agent, task_id)


async def test_REG_4_a_capability_speaks_its_own_languages(world, agents):
    stubs, _ = world
    agent = await agents("polyglot", {"name": "drafts", "languages": ["de"]}, "images", languages=["en"],
                         max_concurrency=9)  # fmt: skip
    await offered(agent, await submit(stubs, capability="drafts", accepted_languages=["de"]))
    await offered(agent, await submit(stubs, capability="images", accepted_languages=["en"]))
    other = await agents("german", "images", languages=["de"], max_concurrency=9)
    await offered(other, await submit(stubs, capability="images", accepted_languages=["de"]))


async def test_RTE_5_a_lower_threshold_of_the_matcher_counts_for_the_choice_too(tmp_path):
    """Whom a text may go to by the configuration, it goes to: the policy `content` does not wait for a better one."""
    async with running(tmp_path, matcher__threshold=0.22) as node, Stubs(node.port) as stubs:
        agent = AgentByHand(stubs)
        capability = {"name": "refund", "description": "Pays money back to customers who ask for it"}
        await agent.join("one", capabilities=[capability])
        spec = {"task_id": "t", "selector": {"text": "customers money problems everywhere today"}}
        await stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec), timeout=TIMEOUT)
        assert (await agent.next("offers")).task.task_id == "t"
        await agent.close()
