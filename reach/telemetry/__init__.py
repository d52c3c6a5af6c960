"""Traces, metrics, logs and decision records."""
