"""What a cluster looks like at the moment, for people: asked, put together, and drawn."""
