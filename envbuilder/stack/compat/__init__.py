"""Compatibility tables: rows with sources, and look-ups over them."""
