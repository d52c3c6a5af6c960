"""How a task gets to an agent."""
