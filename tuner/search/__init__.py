"""The tune loop."""
