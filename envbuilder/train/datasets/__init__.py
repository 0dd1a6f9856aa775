"""Mappings of known data sets."""
