"""Not `tests/torch`: pytest would know a package of that name as `torch`."""
