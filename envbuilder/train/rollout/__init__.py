"""A rollout for cards without vLLM: static KV cache, one captured CUDA graph a token, float32, no Triton."""
