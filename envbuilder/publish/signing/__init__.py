"""Signing what is said of an image, and telling who signed: with a key file, or keyless through Sigstore."""
