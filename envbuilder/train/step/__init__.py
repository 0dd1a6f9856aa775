"""The rest of a PPO step: log-probabilities over a large vocabulary in chunks, and an optimiser without copies."""
