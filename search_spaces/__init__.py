"""What may vary, as data: no torch here."""
