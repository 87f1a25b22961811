"""The killable measuring process."""
