"""Watching: which actors watch which others, and how notices reach them across nodes."""
