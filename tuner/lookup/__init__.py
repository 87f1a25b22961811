"""From key to answer. Standard library only."""
