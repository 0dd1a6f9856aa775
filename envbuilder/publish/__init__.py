"""An image on other hosts: how it gets there, what is inside it, and running it on many at once."""
