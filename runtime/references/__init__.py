"""References: the values that this node owns, and those of others that it holds."""
