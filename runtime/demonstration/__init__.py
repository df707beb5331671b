"""The main job that `understudy demo` shows: an index of the standard library's identifiers, made
while nodes come, go and die.
"""
