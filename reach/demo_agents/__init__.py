"""The agents of `reach demo`: useful without a model and without a network.

They ship with the package, so that `reach demo` works after a plain `pip install`. Each is a process of its own:

    python -m reach.demo_agents.summarizer      sums up any text or Markdown, sentence by sentence
    python -m reach.demo_agents.report          answers questions in plain words over a SQLite database
    python -m reach.demo_agents.reviewer        reviews Python source, finding by finding
    python -m reach.demo_agents.openai_adapter  passes prompts on to any OpenAI-compatible endpoint

In every module the logic is plain functions that know nothing of Agent-Reach; `build_agent` and `main` at the bottom
connect them to the SDK. That split is what we would advise for agents of your own.
"""
