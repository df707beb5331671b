"""What is logged on a node: by which actor and call, kept in memory, and what outlives the node."""
