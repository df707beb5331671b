"""One suite for every implementation of an interface."""
