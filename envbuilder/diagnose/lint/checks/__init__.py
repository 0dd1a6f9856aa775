"""The checks, one file a subject; each yields hits that name their rule."""
