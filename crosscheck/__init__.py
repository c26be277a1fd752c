"""Compares both backends with the spec, and with each other."""
