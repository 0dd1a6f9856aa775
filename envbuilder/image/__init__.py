"""Engines that build and run images, and what is known of an image."""
