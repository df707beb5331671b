"""Watching: who waits for the ends of which actors, and how notices reach them across nodes."""
