"""The checks, one file a subject. None imports torch before it runs."""
