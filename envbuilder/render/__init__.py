"""From locks to text: Dockerfiles and environment files."""
