"""Compares both backends with the spec, and with each other; and functions of others with the spec (`conform`)."""

from rlscan.crosscheck.conform_page import page
from rlscan.crosscheck.conformance import conform, rules_of

__all__ = ["conform", "page", "rules_of"]
