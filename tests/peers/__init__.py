"""Other libraries beside this one: the same works, in one run, on one machine."""
