"""The smallest agent. It needs a server: `reach serve`. Call it with `reach dispatch --agent hello Ada`."""

from reach import Agent, Task

agent = Agent("hello", capabilities=["greeting"])


@agent.route()  # the handler for all methods that have none of their own
async def greet(task: Task) -> str:
    """Greets whoever the task names."""
    return f"Hello, {task.text.strip() or 'world'}!"


if __name__ == "__main__":
    agent.run()  # until Ctrl-C or SIGTERM
