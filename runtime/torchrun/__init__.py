"""Our rendezvous for torchrun: the agents are torch's, what they meet over is ours. `plugin` is
found by torch; nothing else imports it.
"""
