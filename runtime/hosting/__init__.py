"""Hosting: the actors of one node, their mailboxes, and the workers that run them."""
