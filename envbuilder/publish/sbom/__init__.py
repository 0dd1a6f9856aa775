"""What is inside an image: its packages, out of its own databases and its lock, as CycloneDX and SPDX documents."""
