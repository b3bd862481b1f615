"""Memory that is written: by registered ops, by what stands around them, and in their place."""
