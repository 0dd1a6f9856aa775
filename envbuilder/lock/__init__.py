"""From what is wanted to what is exact: conda, Python, Debian and source locks."""
