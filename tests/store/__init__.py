"""Tests of the coordination store's machine, history and embedded form."""
