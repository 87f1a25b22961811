"""Devices, timing and quietness, statistics, correctness."""
