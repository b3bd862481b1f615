"""FX graphs, whatever they are of: what nodes do, and graphs traced, copied, inlined and named."""
