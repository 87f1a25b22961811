"""All compiler internals."""
