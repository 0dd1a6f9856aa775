"""The suite that runs inside the image. Standard library, torch and verl only."""
