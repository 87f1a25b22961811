"""Graphs: canonical form, key, JSON; and how a user names one."""
