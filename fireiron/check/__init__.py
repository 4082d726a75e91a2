"""Checks: kernel IR to findings."""
