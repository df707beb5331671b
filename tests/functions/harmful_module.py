"""A module whose import raises."""

raise RuntimeError("the module raises")
