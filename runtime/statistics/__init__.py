"""What a node counts and measures while it works: plain integers and arrays of fixed length. No I/O
and no clock here. The rooms above read them when they are asked.
"""
