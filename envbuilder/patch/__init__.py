"""Changes to verl for old cards."""
