"""Data, memory plan and launch of a training run."""
