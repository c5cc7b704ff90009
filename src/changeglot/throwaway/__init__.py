"""Servers on this machine that are thrown away: for the demo, tests and trying things."""
