"""The Python SDK: Agent and Client."""
