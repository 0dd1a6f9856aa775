"""Judging what a host reports: pure functions from facts to outcomes, the same live and on a replayed file."""
