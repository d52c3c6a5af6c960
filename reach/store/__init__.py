"""Journals: where tasks outlive the process."""
