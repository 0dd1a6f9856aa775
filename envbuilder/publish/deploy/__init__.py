"""Job files for schedulers: they prove the cards of every host first, and train only when that gave a yes."""
