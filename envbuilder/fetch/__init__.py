"""Bringing the bytes a lock names into the cache: located through the client's own settings, resumed, verified."""
