"""Exact locks, reproducible images and proof that they run, for old NVIDIA cards."""

__version__ = "0.1.0"
