from tests.e2e.plain import spec
def test_smoke(server, plain, start_agents, log):
    start_agents(2)
    answer = plain.dispatch(spec("echo", "hi"), wait=10)
    assert answer.result.output.text == "hi"
    answer = plain.dispatch(spec("stream", {"count": 5, "pause": 0}), wait=10)
    print(answer)
