"""Policy, statistics, correctness."""
