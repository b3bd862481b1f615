"""Which neighbours of a registered op share its choice: regions of the graph, and their limits."""
