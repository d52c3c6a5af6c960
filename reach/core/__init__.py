"""Decisions: plain functions and small classes that know no clock, no chance and no input or output."""
