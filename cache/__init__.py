"""The store: every measurement, every winner. Knows no torch."""
