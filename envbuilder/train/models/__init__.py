"""Known models at pinned revisions."""
