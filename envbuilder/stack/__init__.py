"""Stacks and GPU profiles: what is wanted, and what is known of a card."""
